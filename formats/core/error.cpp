#include "formats/core/error.h"

#include <utility>

namespace formats {

std::string_view name_of(Code code) {
  switch (code) {
    case Code::usage:
      return "usage";
    case Code::io:
      return "io";
    case Code::no_space:
      return "no_space";
    case Code::no_memory:
      return "no_memory";
    case Code::corrupt:
      return "corrupt";
    case Code::incomplete:
      return "incomplete";
    case Code::unsupported:
      return "unsupported";
    case Code::limit:
      return "limit";
    case Code::busy:
      return "busy";
    case Code::state:
      return "state";
    case Code::layout:
      return "layout";
    case Code::peer:
      return "peer";
    case Code::cancelled:
      return "cancelled";
  }
  return "unknown";
}

Error Error::within(std::string_view context) && {
  message.insert(0, ": ");
  message.insert(0, context);
  return std::move(*this);
}

}  // namespace formats
