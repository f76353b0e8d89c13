#include "ebb/formats/core/error.h"

#include <utility>

namespace ebb::formats {
namespace {

// Where the message goes on behind its "file:offset: "; 0 where it does not begin so.
std::size_t behind_place(std::string_view message) {
  const std::size_t end = message.find(": ");
  if (end == std::string_view::npos) return 0;
  const std::string_view place = message.substr(0, end);
  const std::size_t colon = place.find_last_not_of("0123456789");
  const bool offset = colon != std::string_view::npos && place[colon] == ':' && colon + 1 < end;
  return offset ? end + 2 : 0;
}

}  // namespace

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
    case Code::moved:
      return "moved";
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

Error Error::about(std::string_view subject) && {
  message.insert(behind_place(message), compose("{}: ", subject));
  return std::move(*this);
}

}  // namespace ebb::formats
