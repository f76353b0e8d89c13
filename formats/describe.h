// A checkpoint's catalog, whatever its format, and what lies beside it.
#pragma once

#include <memory>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/core/byte_source.h"
#include "ebb/formats/state_dict/parts.h"

namespace ebb::formats {

// Detects and describes; Code::unsupported with what was found when no format claims the tree.
Result<std::unique_ptr<Checkpoint>> describe(std::shared_ptr<const SourceTree> tree);
// The same where somebody says which parts of a torch state dict are what. Code::usage for those
// that are not there, and for formats that are no state dicts.
Result<std::unique_ptr<Checkpoint>> describe(std::shared_ptr<const SourceTree> tree,
                                             const PartsSaid& said);
// What is not whole, as far as its index tells (Format::describe_with_holes).
Result<std::unique_ptr<Checkpoint>> describe_with_holes(std::shared_ptr<const SourceTree> tree);

}  // namespace ebb::formats
