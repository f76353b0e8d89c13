// Some files of a tree as a tree of their own, for a format that would otherwise look at all of
// them. Internal to formats/folders.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ebb/formats/core/byte_source.h"

namespace ebb::formats::folders {

// `root`: how messages call it; that of one file, named itself, is the file's path.
std::shared_ptr<const SourceTree> tree_of(std::shared_ptr<const SourceTree> tree,
                                          const std::vector<std::string>& files, std::string root);

}  // namespace ebb::formats::folders
