// A folder of a tree of files, or some files of it, as a tree of its own.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ebb/formats/core/byte_source.h"

namespace ebb::formats {

// The files below `folder`; "" gives all.
std::shared_ptr<const SourceTree> folder_of(std::shared_ptr<const SourceTree> tree,
                                            const std::string& folder);

// These files, as far as they are there: for a format that would otherwise look at all of them.
// `root`: how messages call them; that of one file, named itself, is the file's path.
std::shared_ptr<const SourceTree> files_of(std::shared_ptr<const SourceTree> tree,
                                           const std::vector<std::string>& files, std::string root);

}  // namespace ebb::formats
