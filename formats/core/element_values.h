// Elements of any dtype as doubles: exact for every floating type and for integers up to 2^53.
// Sources: IEEE 754; the OCP 8-bit and microscaling formats (E4M3, E5M2, E8M0); their "fnuz"
// variants as ml_dtypes has them.
#pragma once

#include <span>

#include "ebb/formats/core/bytes.h"
#include "ebb/formats/core/dtype.h"

namespace ebb::formats {

// How many doubles one element is: 1; 2 for complex types (real part, imaginary part); 0 for the
// sub-byte types, which are not taken apart.
std::size_t values_per_element(DType dtype);

// Fills `into` from dense little-endian elements. REQUIRES: values_per_element() is not 0; `into`
// has that many doubles for each element.
void element_values(DType dtype, ByteView elements, std::span<double> into);

}  // namespace ebb::formats
