// The place of a leaf in nested dicts and lists as one key.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ebb/formats/catalog/catalog.h"

namespace ebb::formats {

// As torch flattens state dicts: words and positions with dots between them.
std::string joined(const std::vector<PathItem>& path);

inline bool is_word(const PathItem& item, std::string_view word) {
  const auto* text = std::get_if<std::string>(&item);
  return text != nullptr && *text == word;
}

}  // namespace ebb::formats
