// The index of a chunked dataset to be written: a version 1 B-tree, which every HDF5 reads. Its
// size follows from the number of chunks, so it can be laid out before the chunks are made. Source:
// HDF5 File Format Specification 3.0, III.A.1. Internal to formats/hdf5.
#pragma once

#include <cstdint>
#include <span>

#include "ebb/formats/catalog/emit.h"
#include "ebb/formats/core/bytes.h"
#include "ebb/formats/layout/box.h"

namespace ebb::formats::hdf5 {

// Chunks of equal shape that cover a dataset, the last one of a row of them reaching beyond it.
struct ChunkGrid {
  Shape shape;
  Shape chunk;
  std::uint32_t elem_bytes = 0;

  std::uint64_t count() const;
  std::uint64_t chunk_bytes() const;
  // Of the chunk with this number, row-major: its part inside the dataset. REQUIRES: number <
  // count().
  Box box(std::uint64_t number) const;
};

// Chunks of about `bytes` of which each one's elements inside the dataset are the first of the
// chunk: whole rows of one dimension. REQUIRES: at least one dimension and one element.
ChunkGrid grid_of(const Shape& shape, std::uint32_t elem_bytes, std::uint64_t bytes);

std::uint64_t chunk_tree_bytes(const ChunkGrid& grid);
// With its root first, lying at `at`. REQUIRES: one place a chunk.
ByteVector chunk_tree(const ChunkGrid& grid, std::uint64_t at, std::span<const FileRange> places);

}  // namespace ebb::formats::hdf5
