// compose("rank {} of {}", 3, world): the one way to put a message together.
#pragma once

#include <concepts>
#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>

namespace ebb::formats {

// A literal with as many "{}" as there are arguments: anything else does not compile.
template <std::size_t Arguments>
class ComposePattern {
 public:
  consteval ComposePattern(const char* text) : text_(text) {  // NOLINT: a literal is a pattern
    std::size_t places = 0;
    for (std::size_t at = text_.find("{}"); at != text_.npos; at = text_.find("{}", at + 2))
      ++places;
    if (places != Arguments) needs_as_many_places_as_arguments();
  }
  std::string_view text() const { return text_; }

 private:
  static void needs_as_many_places_as_arguments();  // no constant: ends the compilation

  std::string_view text_;
};

class ComposeArgument {
 public:
  template <std::integral Number>
    requires(!std::same_as<Number, char> && !std::same_as<Number, bool>)
  explicit ComposeArgument(Number number) : digits_(std::to_string(number)), text_(digits_) {}
  explicit ComposeArgument(const char& character) : text_(&character, 1) {}
  explicit ComposeArgument(std::string_view text) : text_(text) {}
  ComposeArgument(const ComposeArgument&) = delete;
  ComposeArgument& operator=(const ComposeArgument&) = delete;

  std::string_view text() const { return text_; }

 private:
  std::string digits_;
  std::string_view text_;
};

std::string composed(std::string_view pattern, std::initializer_list<ComposeArgument> arguments);

template <typename... Arguments>
std::string compose(ComposePattern<sizeof...(Arguments)> pattern, const Arguments&... arguments) {
  return composed(pattern.text(), {ComposeArgument(arguments)...});
}

}  // namespace ebb::formats

namespace ebb {
using formats::compose;
}  // namespace ebb
