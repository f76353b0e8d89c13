// What was done to the bytes of a chunk before they were stored, undone. Source: HDF5 File Format
// Specification 3.0, "Filter Pipeline Message"; H5Zshuffle.c and H5checksum.c for the two filters
// of HDF5's own.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/formats/core/bytes.h"
#include "ebb/formats/core/result.h"
#include "ebb/formats/hdf5/description.h"

namespace ebb::formats::hdf5 {

constexpr std::uint32_t kDeflate = 1, kShuffle = 2, kFletcher32 = 3, kZstd = 32015;

// Code::unsupported with the filter's name when one of them is not among those above.
Result<> check_filters(const std::vector<Filter>& filters, std::string_view where);

// The `plain` bytes of a chunk from its stored ones. Bit i of `skipped`: filter i was not applied.
// Code::corrupt where a checksum or a stream is wrong or the size is not `plain`; `where` begins
// the message. Memory: a few times `plain` plus the stored bytes.
Result<ByteVector> undo_filters(const std::vector<Filter>& filters, std::uint32_t skipped,
                                std::uint32_t elem_bytes, ByteVector stored, std::uint64_t plain,
                                std::string_view where);

// HDF5's Fletcher checksum: of 16-bit big-endian words, an odd last byte is a word's upper half.
std::uint32_t fletcher32(ByteView bytes);

}  // namespace ebb::formats::hdf5
