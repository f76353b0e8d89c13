// Parameters get other names where they are spoken of beside their tensors.
#pragma once

#include <functional>
#include <string>

#include "ebb/formats/catalog/catalog.h"

namespace ebb::formats {

// `rename` changes a name, or leaves it as it is. Of groups and of counted steps.
void rename_beside_tensors(Catalog& catalog, const std::function<void(std::string&)>& rename);

}  // namespace ebb::formats
