// compose("rank {} of {}", 3, world): the one way to put a message together.
#pragma once

#include <concepts>
#include <initializer_list>
#include <string>
#include <string_view>

namespace ebb::formats {

class ComposeArgument {
 public:
  template <std::integral Number>
    requires(!std::same_as<Number, char> && !std::same_as<Number, bool>)
  explicit ComposeArgument(Number number) : digits_(std::to_string(number)), text_(digits_) {}
  explicit ComposeArgument(std::string_view text) : text_(text) {}
  ComposeArgument(const ComposeArgument&) = delete;
  ComposeArgument& operator=(const ComposeArgument&) = delete;

  std::string_view text() const { return text_; }

 private:
  std::string digits_;
  std::string_view text_;
};

// Each "{}" of the pattern is the next argument. REQUIRES: as many arguments as places.
std::string composed(std::string_view pattern, std::initializer_list<ComposeArgument> arguments);

template <typename... Arguments>
std::string compose(std::string_view pattern, const Arguments&... arguments) {
  return composed(pattern, {ComposeArgument(arguments)...});
}

}  // namespace ebb::formats

namespace ebb {
using formats::compose;
}  // namespace ebb
