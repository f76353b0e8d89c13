// Names that mean the same in every format, for formats whose own names are places.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "ebb/formats/catalog/catalog.h"

namespace ebb::formats {

// What a catalog's tensors and groups are called where its own format's conventions mean nothing.
struct CommonNames {
  std::vector<std::pair<std::string, std::string>> tensors;  // (name, state) of each, in order
  std::vector<GroupEntry> groups;
};

}  // namespace ebb::formats
