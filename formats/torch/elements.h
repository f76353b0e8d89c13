// The elements of a tensor out of its storage, row-major and little-endian, whatever its strides
// and the storage's byte order: any part of them at a time, in memory that does not grow with
// either.
#pragma once

#include <cstdint>
#include <span>

#include "ebb/formats/core/byte_source.h"
#include "ebb/formats/torch/tensor.h"

namespace ebb::formats {

enum class ByteOrder : std::uint8_t { little, big };

// Bytes [first, first + into.size()) of the row-major tensor. The storage's bytes begin at `at` of
// `source`. REQUIRES: the range lies inside the tensor's bytes, the tensor inside the storage.
Result<> read_elements(const ByteSource& source, std::uint64_t at, const TorchTensor& tensor,
                       ByteOrder order, std::uint64_t first, std::span<std::byte> into);

// The bytes that are swapped as one: half of a complex number, else an element.
std::size_t swap_unit(DType dtype);

}  // namespace ebb::formats
