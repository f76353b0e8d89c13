// Element types of HDF5 as DTypes and back.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "ebb/formats/core/dtype.h"
#include "ebb/formats/hdf5/description.h"

namespace ebb::formats::hdf5 {

struct Elements {
  DType dtype = DType::f32;
  std::uint32_t swap = 1;  // bytes that are stored the other way round, in units of this; 1: none
};

// nullopt: no numbers, or numbers we have no name for.
std::optional<Elements> elements_of(const ElementType& type);

// Floats by their bits; what IEEE 754 does not define is written as HDF5 2 and numpy's ml_dtypes
// do. All little endian, mantissa at bit 0, the exponent above it, the sign on top.
struct FloatBits {
  DType dtype;
  std::uint32_t bytes;
  std::uint32_t exponent_bits;
  std::uint32_t mantissa_bits;
  std::uint64_t bias;
};
std::optional<FloatBits> float_bits_of(DType dtype);

}  // namespace ebb::formats::hdf5
