// Numbers as text that reads back exactly: the shortest decimal of that type.
#pragma once

#include <charconv>
#include <string>

namespace ebb::libmuon {

template <typename T>
std::string number_text(T value) {
  char text[40];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  return {text, end};
}

}  // namespace ebb::libmuon
