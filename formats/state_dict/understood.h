// Whether enough of a torch state dict is understood for formats that hold parameters.
#pragma once

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/core/result.h"

namespace ebb::formats {

// What is to be converted of `source`, a described state dict, under the names that it will have.
// Code::unsupported where a tensor would become a parameter only because nothing says what it is,
// or a state that of a parameter which nobody knows; the hint says which flags would.
Result<> check_understood(const Catalog& source, const Catalog& content);

}  // namespace ebb::formats
