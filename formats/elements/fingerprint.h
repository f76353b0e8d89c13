// Fingerprint: 64 bits that two copies of a tensor share if and (almost) only if every element is
// equal, however each copy is cut, ordered or encoded. It is the sum, modulo 2^64, of a product for
// each word: its bits plus one, times a key that follows from its flat index. A word is an element,
// or 4 bytes of a larger one. So fingerprints of disjoint boxes add up to the whole's, and one
// wrong word is always seen. (Multilinear hashing: Carter and Wegman 1979; in vector units: Lemire
// and Kaser 2014.) Not a defence against forgery: that is what SHA-256 is for.
#pragma once

#include <cstdint>

#include "ebb/formats/core/bytes.h"
#include "ebb/formats/layout/box.h"

namespace ebb::formats {

// Elements [first, first + data.size() / elem_bytes) of the row-major tensor, dense in `data`.
// REQUIRES: elem_bytes is 1, 2, 4, 8 or 16 and divides data.size().
std::uint64_t fingerprint(std::uint64_t first, ByteView data, std::uint32_t elem_bytes);

// The elements of `box`, row-major and dense in `data`. REQUIRES: as above; box inside shape.
std::uint64_t fingerprint(const Shape& shape, const Box& box, ByteView data,
                          std::uint32_t elem_bytes);

// The elements of `box` from its `first`-th on. REQUIRES: as above.
std::uint64_t fingerprint(const Shape& shape, const Box& box, std::uint64_t first, ByteView data,
                          std::uint32_t elem_bytes);

// Of `region` alone, out of the elements of `frame`. REQUIRES: as above; region inside frame.
std::uint64_t fingerprint(const Shape& shape, const Box& region, ConstBoxView frame,
                          std::uint32_t elem_bytes);

}  // namespace ebb::formats
