#include "ebb/formats/core/compose.h"

#include "ebb/formats/core/check.h"

namespace ebb::formats {

std::string composed(std::string_view pattern, std::initializer_list<ComposeArgument> arguments) {
  std::string out;
  for (const ComposeArgument& argument : arguments) {
    const std::size_t place = pattern.find("{}");
    EBB_CHECK(place != std::string_view::npos);
    out.append(pattern.substr(0, place)).append(argument.text());
    pattern.remove_prefix(place + 2);
  }
  EBB_CHECK(pattern.find("{}") == std::string_view::npos);
  return out.append(pattern);
}

}  // namespace ebb::formats
