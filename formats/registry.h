// The formats this build reads and writes: one line each in registry.cpp; adding a format touches
// its folder and that list.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "ebb/formats/catalog/format.h"
#include "ebb/formats/state_dict/parts.h"

namespace ebb::formats {

std::span<const Format* const> registered_formats();
// Those of them that emit() writes.
std::vector<const Format*> written_formats();
const Format* format_named(std::string_view name);
// The one that would read the tree; nullptr when none claims it.
const Format* format_at(const SourceTree& tree);
// The catalog's. For catalogs of no registered format (of a trainer's memory): one of which nothing
// is known.
const Format& format_of(const Catalog& catalog);

// Detects and describes; Code::unsupported with what was found when no format claims the tree.
Result<std::unique_ptr<Checkpoint>> describe(std::shared_ptr<const SourceTree> tree);
// The same where somebody says which parts of a torch state dict are what. Code::usage for those
// that are not there, and for formats that are no state dicts.
Result<std::unique_ptr<Checkpoint>> describe(std::shared_ptr<const SourceTree> tree,
                                             const PartsSaid& said);
// What is not whole, as far as its index tells (Format::describe_with_holes).
Result<std::unique_ptr<Checkpoint>> describe_with_holes(std::shared_ptr<const SourceTree> tree);

}  // namespace ebb::formats
