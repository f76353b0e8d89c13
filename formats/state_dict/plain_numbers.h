// Numbers that are tensors of one element, as those of settings may be, and as plain numbers. Pure.
#pragma once

#include <optional>

#include "ebb/formats/catalog/value.h"
#include "ebb/formats/core/bytes.h"
#include "ebb/formats/core/dtype.h"

namespace ebb::formats {

// One element; nullopt for types that are no plain numbers, and whole numbers past 64 bits.
std::optional<Value> number_in(DType dtype, ByteView element);

// With numbers where it has tensors of one element.
Value with_plain_numbers(Value value);
// The other way: its fractions as such tensors, F64 where they need it.
Value with_tensors(Value value, DType dtype);

}  // namespace ebb::formats
