// The formats this build reads and writes: one line each in registry.cpp; adding a format touches
// its folder and that list.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "ebb/formats/catalog/format.h"

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

}  // namespace ebb::formats
