// What lies in a checkpoint's folder and is no part of what was read: each thing is named, or
// counted among what holds nothing trained. What a thing is, its name tells, or a look at its first
// bytes; nothing is executed, and what is looked at is limited, however many entries there are.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/core/byte_source.h"

namespace ebb::formats {

// In the order of names; entries whose names differ in numbers alone are one. `read`: what was
// described of the tree.
std::vector<BesideEntry> what_lies_beside(const std::shared_ptr<const SourceTree>& tree,
                                          const Catalog& read);

// A file that loaders of the format use though its catalogs list it nowhere: where a checkpoint
// lies, what its files are, what it repeats.
bool is_loaders_own(const Catalog& read, std::string_view path);

}  // namespace ebb::formats
