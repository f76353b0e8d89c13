#include "ebb/formats/core/compose.h"

namespace ebb::formats {

std::string composed(std::string_view pattern, std::initializer_list<ComposeArgument> arguments) {
  std::string out;
  for (const ComposeArgument& argument : arguments) {
    const std::size_t place = pattern.find("{}");
    out.append(pattern.substr(0, place)).append(argument.text());
    pattern.remove_prefix(place + 2);
  }
  return out.append(pattern);
}

}  // namespace ebb::formats
