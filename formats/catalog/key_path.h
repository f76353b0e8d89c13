// The place of a leaf in nested dicts and lists as one key.
#pragma once

#include <string>
#include <vector>

#include "formats/catalog/catalog.h"

namespace formats {

// As torch flattens state dicts: words and positions with dots between them.
std::string joined(const std::vector<PathItem>& path);

}  // namespace formats
