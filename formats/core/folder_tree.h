// A folder of a tree of files, as a tree of its own.
#pragma once

#include <memory>
#include <string>

#include "ebb/formats/core/byte_source.h"

namespace ebb::formats {

// The files below `folder`; "" gives all.
std::shared_ptr<const SourceTree> folder_of(std::shared_ptr<const SourceTree> tree,
                                            const std::string& folder);

}  // namespace ebb::formats
