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

// Of FSDP's flattened parameters: all those of a module in one row, whose names and shapes a
// LOCAL_STATE_DICT does not record.
bool is_flattened_key(std::string_view key);

}  // namespace ebb::formats
