// Where the parts of a Megatron checkpoint contradict each other. Internal to formats/megatron.
#pragma once

#include <string>

#include "ebb/formats/catalog/catalog.h"

namespace ebb::formats {

// One sentence when the folder's name and the stored iteration differ: "" when they agree, or one
// of them is not known.
std::string iterations_that_differ(const Catalog& catalog);

}  // namespace ebb::formats
