// BoxReader: any box of a described tensor, gathered from the chunks that overlap it. What load,
// convert, export and digests read through.
//
// Borrows the checkpoint and the tensor. Thread-safe. Memory: the index (24 bytes a chunk) and, per
// call, at most one run of kMaxRun bytes.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "formats/catalog/catalog.h"

namespace libswap {

using formats::Result;

class BoxReader {
 public:
  static constexpr std::uint64_t kMaxRun = std::uint64_t{4} << 20;  // bytes asked for at once

  // Code::corrupt when a chunk lies outside the tensor's shape.
  static Result<BoxReader> open(const formats::Checkpoint& checkpoint,
                                const formats::TensorEntry& tensor);

  const formats::TensorEntry& tensor() const { return *tensor_; }
  // Bytes of one element; sub-byte types count as their packed bytes, and then only boxes that are
  // stored as one chunk can be read, by BoxStream (Code::unsupported otherwise).
  std::uint32_t elem_bytes() const { return elem_bytes_; }
  bool packed() const { return packed_; }

  // Fills `into` with the row-major elements of `box`. Code::incomplete when part of it is in no
  // chunk, Code::corrupt when part of it is in several; neither is found out before the end.
  // REQUIRES: box inside the tensor, into.size() its bytes.
  Result<> read(const formats::Box& box, std::span<std::byte> into) const;

  // The chunk that is exactly `box`, if there is one.
  const formats::Chunk* chunk_of(const formats::Box& box) const;
  // Fills `into` from the chunk's decoded bytes, from byte `first` on, at most kMaxRun at a time.
  Result<> read_chunk(const formats::Chunk& chunk, std::uint64_t first,
                      std::span<std::byte> into) const;

 private:
  class Gather;

  BoxReader(const formats::Checkpoint& checkpoint, const formats::TensorEntry& tensor);
  void build_index();
  std::span<const formats::Chunk* const> candidates(const formats::Box& box) const;

  const formats::Checkpoint* checkpoint_;
  const formats::TensorEntry* tensor_;
  std::uint32_t elem_bytes_ = 1;
  bool packed_ = false;
  // Non-empty chunks, ascending by offset in the dimension that separates most of them, and the
  // furthest end of each and those before it.
  std::size_t dim_ = 0;
  std::vector<const formats::Chunk*> chunks_;
  std::vector<std::uint64_t> furthest_;
};

// The same for one box only.
Result<> read_box(const formats::Checkpoint& checkpoint, const formats::TensorEntry& tensor,
                  const formats::Box& box, std::span<std::byte> into);

// The row-major bytes of a box in order, as many at a time as the caller has room for, with their
// fingerprint. Borrows the reader.
class BoxStream {
 public:
  // REQUIRES: box inside the tensor.
  static Result<BoxStream> open(const BoxReader& reader, formats::Box box);

  std::uint64_t bytes_left() const { return size_ - next_; }
  // Fills exactly `into`. REQUIRES: into.size() <= bytes_left().
  Result<> read(std::span<std::byte> into);
  // Of all elements begun so far; of the whole box when bytes_left() is 0.
  std::uint64_t fingerprint() const { return fingerprint_; }

 private:
  BoxStream(const BoxReader& reader, formats::Box box, std::uint64_t size)
      : reader_(&reader), box_(std::move(box)), size_(size) {}
  Result<> read_elements(std::uint64_t first, std::span<std::byte> into);

  const BoxReader* reader_;
  formats::Box box_;
  const formats::Chunk* chunk_ = nullptr;  // packed types only
  std::uint64_t size_ = 0;
  std::uint64_t next_ = 0;  // byte of the box
  std::uint64_t fingerprint_ = 0;
  std::array<std::byte, 16> element_{};  // the one that did not fit whole into the last read
};

}  // namespace libswap
