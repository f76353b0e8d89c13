// Conversion between the floating element types: rounded once, to nearest, ties to even; too large
// becomes infinity, NaN stays NaN (its sign kept), subnormals are kept.
#pragma once

#include "ebb/formats/core/bytes.h"
#include "ebb/formats/core/dtype.h"

namespace ebb::formats {

// f64, f32, f16 and bf16.
bool is_floating(DType dtype);
// Every value of `from` is a value of `to`.
bool is_widening(DType from, DType to);

// `into` = `scale` times `elements`, dense and little-endian. REQUIRES: both dtypes are floating;
// the same number of elements on both sides; no overlap.
void cast_floats(DType from, ByteView elements, DType to, std::span<std::byte> into,
                 double scale = 1);

}  // namespace ebb::formats
