// list_directory: what lies in a folder.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "ebb/formats/core/result.h"

namespace ebb::libswap {

// Names, sorted. Code::limit above `most`. Not the standard's iterators: where they find no memory
// they end the program.
Result<std::vector<std::string>> list_directory(const std::filesystem::path& directory,
                                                std::size_t most);

}  // namespace ebb::libswap
