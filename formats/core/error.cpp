#include "ebb/formats/core/error.h"

#include <array>
#include <utility>

namespace ebb::formats {
namespace {

constexpr std::array<std::pair<Code, std::string_view>, 14> kNames = {
    {{Code::usage, "usage"},
     {Code::io, "io"},
     {Code::no_space, "no_space"},
     {Code::no_memory, "no_memory"},
     {Code::corrupt, "corrupt"},
     {Code::incomplete, "incomplete"},
     {Code::unsupported, "unsupported"},
     {Code::limit, "limit"},
     {Code::busy, "busy"},
     {Code::moved, "moved"},
     {Code::state, "state"},
     {Code::layout, "layout"},
     {Code::peer, "peer"},
     {Code::cancelled, "cancelled"}}};

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
  for (const auto& [known, name] : kNames)
    if (known == code) return name;
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
