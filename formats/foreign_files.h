// What people find in the place of a checkpoint's file: a pointer of git-lfs whose file was never
// fetched, a web page that a download answered with.
#pragma once

#include <optional>

#include "ebb/formats/core/byte_source.h"

namespace ebb::formats {

// The first such file among those that a checkpoint is made of, as an error that says so. Reads a
// few bytes of each.
std::optional<Error> foreign_file_in(const SourceTree& tree);

}  // namespace ebb::formats
