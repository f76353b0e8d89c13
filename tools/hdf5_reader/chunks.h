// Where the chunks of a dataset lie.
#pragma once

#include <hdf5.h>

#include "ebb/formats/core/result.h"
#include "ebb/formats/hdf5/description.h"
#include "tools/hdf5_reader/driver.h"

namespace ebb::hdf5_reader {

constexpr std::uint64_t kMostChunks = 8'000'000;  // of one dataset

// Fills chunks_stored, and chunks when as many are stored as the grid of `out` has cells.
// REQUIRES: out.shape and out.chunk are set, of the same length, no extent of a chunk is 0.
Result<> list_chunks(hid_t dataset, Bytes& bytes, formats::hdf5::Dataset& out);

}  // namespace ebb::hdf5_reader
