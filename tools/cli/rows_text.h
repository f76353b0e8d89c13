// A piece of a tensor, in as few words as tell it.
#pragma once

#include <string>

#include "ebb/formats/layout/box.h"

namespace ebb::tools {

// "0-511" where whole rows are stored, "all" for a whole tensor, else the box.
std::string rows_text(const Box& box, const Shape& shape);

}  // namespace ebb::tools
