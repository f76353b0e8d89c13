// Where the elements of a dataset lie in its file, and how they are read from there.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ebb/formats/core/byte_source.h"
#include "ebb/formats/hdf5/description.h"
#include "ebb/formats/hdf5/elements.h"
#include "ebb/formats/layout/box.h"

namespace ebb::formats::hdf5 {

constexpr std::uint64_t kMaxChunkBytes = std::uint64_t{256} << 20;  // of one chunk, decoded

// What the pieces of one dataset have in common.
struct Coding {
  std::string path;  // of the dataset
  Elements elements;
  std::uint32_t elem_bytes = 1;
  std::vector<Filter> filters;
  ByteVector content;  // a compact dataset's bytes, which lie in no place of their own
  bool compact = false;
};

// A dense row-major array of elements at one place of a file: a whole contiguous dataset, or one
// chunk.
struct Stored {
  std::uint64_t address = 0;  // in the file
  std::uint64_t bytes = 0;
  std::uint32_t skipped = 0;  // filters that were not applied
  Box box;                    // what of the dataset it holds
  Shape dense;                // extents of the array, beyond the dataset's edge at the last chunks
};

// A box of a Stored's array, in its own coordinates: what one Chunk of the catalog is made of.
struct Place {
  std::uint32_t coding = 0;  // which Coding, which file: the caller's numbers
  std::uint32_t file = 0;
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  std::uint32_t skipped = 0;
  Shape dense;
  Box part;
};

// Of all of a dataset's elements. Code::limit where 64 bits do not count them.
Result<std::uint64_t> plain_bytes(const Dataset& dataset, std::uint32_t elem_bytes);

// Everything that must hold of a dataset's storage before any of it is used. `file_bytes`: bytes of
// the file from where addresses count. Errors name the dataset: never written, beyond the file,
// chunks that overlap, too large, a filter nobody here knows.
Result<> check_storage(const Dataset& dataset, std::uint32_t elem_bytes, std::uint64_t file_bytes);

// The pieces of a dataset that overlap `box`; `base` is where in the file addresses count from.
// REQUIRES: check_storage() said yes; layout is not mapped; box inside the shape, not empty.
std::vector<Stored> stored_pieces(const Dataset& dataset, std::uint32_t elem_bytes, const Box& box,
                                  std::uint64_t base);

// Fills `into` with the row-major little-endian bytes of the place's part, from byte `first` on.
// A chunk with filters is decoded whole, and kept as long as the tree keeps such things.
Result<> read_place(const SourceTree& tree, const ByteSource& file, const Coding& coding,
                    const Place& place, std::uint64_t first, std::span<std::byte> into);

}  // namespace ebb::formats::hdf5
