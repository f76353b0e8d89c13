// What a checkpoint's pickles ask Python for and no framework writes: it goes into no output, in
// any spelling.
#pragma once

#include <string>
#include <vector>

#include "ebb/formats/catalog/catalog.h"

namespace ebb::formats {

// Takes out what names something unknown (unsafe_part) of values and settings: entries of dicts go,
// in sequences None takes their place. One line for each value; what echoes others goes silently.
std::vector<std::string> leave_unsafe(Catalog& content);

}  // namespace ebb::formats
