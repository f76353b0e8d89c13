// Numbers as text that reads back exactly: the shortest decimal of that type.
#pragma once

#include <charconv>
#include <optional>
#include <string>
#include <string_view>

namespace ebb::libmuon {

template <typename T>
std::string number_text(T value) {
  char text[40];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  return {text, end};
}

// nullopt unless all of `text` is one number of type T.
template <typename T>
std::optional<T> number_from(std::string_view text) {
  T value{};
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  if (error != std::errc{} || end != last) return std::nullopt;
  return value;
}

}  // namespace ebb::libmuon
