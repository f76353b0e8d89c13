// BoxReader: any box of a described tensor, gathered from the chunks that overlap it. What load,
// convert, export and digests read through.
//
// What is gathered can be proven right on the way: the fingerprint of the elements where the chunks
// say that they are, taken as they come out of the source, must be that of the box where the
// caller put it.
//
// Borrows the checkpoint and the tensor. Thread-safe. Memory: the index (24 bytes a chunk) and, per
// call, at most one run of kMaxRun bytes.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "ebb/formats/catalog/catalog.h"

namespace ebb::formats {

// What a read found.
struct ReadProof {
  std::uint64_t fingerprint = 0;  // of the elements as their chunks place them
  // Whether all of it is runs of chunks that were read to where the same elements are wanted, one
  // behind the other. There is nothing then that could have been put elsewhere.
  bool in_place = false;
};

class BoxReader {
 public:
  static constexpr std::uint64_t kMaxRun = std::uint64_t{4} << 20;  // bytes asked for at once

  // Code::corrupt when a chunk lies outside the tensor's shape.
  static Result<BoxReader> open(const Checkpoint& checkpoint, const TensorEntry& tensor);

  const TensorEntry& tensor() const { return *tensor_; }
  // Bytes of one element; sub-byte types count as their packed bytes, and then only boxes that are
  // stored as one chunk can be read, by BoxStream (Code::unsupported otherwise).
  std::uint32_t elem_bytes() const { return elem_bytes_; }
  bool packed() const { return packed_; }

  // Fills `into` with the row-major elements of `box`. Code::incomplete when part of it is in no
  // chunk, Code::corrupt when part of it is in several; neither is found out before the end.
  // REQUIRES: box inside the tensor, into.size() its bytes.
  Result<> read(const Box& box, std::span<std::byte> into, ReadProof* came = nullptr) const;

  // The chunk that is exactly `box`, if there is one.
  const Chunk* chunk_of(const Box& box) const;
  // A chunk that holds something of `box`, if there is one.
  const Chunk* chunk_with(const Box& box) const;
  // Fills `into` from the chunk's decoded bytes, from byte `first` on, at most kMaxRun at a time.
  Result<> read_chunk(const Chunk& chunk, std::uint64_t first, std::span<std::byte> into) const;

 private:
  class Gather;

  BoxReader(const Checkpoint& checkpoint, const TensorEntry& tensor);
  void build_index();
  std::span<const Chunk* const> candidates(const Box& box) const;

  const Checkpoint* checkpoint_;
  const TensorEntry* tensor_;
  std::uint32_t elem_bytes_ = 1;
  bool packed_ = false;
  // Non-empty chunks, ascending by offset in the dimension that separates most of them, and the
  // furthest end of each and those before it.
  std::size_t dim_ = 0;
  std::vector<const Chunk*> chunks_;
  std::vector<std::uint64_t> furthest_;
};

// The same for one box only.
Result<> read_box(const Checkpoint& checkpoint, const TensorEntry& tensor, const Box& box,
                  std::span<std::byte> into);

// The row-major bytes of a box in order, as many at a time as the caller has room for, with their
// fingerprint if it is wanted. Borrows the reader.
class BoxStream {
 public:
  // checked: Code::corrupt when what was gathered is not what the chunks hold.
  enum class Fingerprint : std::uint8_t { none, checked };
  // REQUIRES: box inside the tensor.
  static Result<BoxStream> open(const BoxReader& reader, Box box,
                                Fingerprint wanted = Fingerprint::none);

  std::uint64_t bytes_left() const { return size_ - next_; }
  // Goes on at this byte of the box, the first one of an element.
  void seek(std::uint64_t byte);
  // Fills exactly `into`. REQUIRES: into.size() <= bytes_left().
  Result<> read(std::span<std::byte> into);
  // Of all elements begun so far; of the whole box when all of it was read.
  std::uint64_t fingerprint() const { return fingerprint_; }

 private:
  BoxStream(const BoxReader& reader, Box box, std::uint64_t size, Fingerprint wanted)
      : reader_(&reader), box_(std::move(box)), wanted_(wanted), size_(size) {}
  Result<> read_part(const Box& part, std::span<std::byte> into);
  Result<> read_elements(std::uint64_t first, std::span<std::byte> into);

  const BoxReader* reader_;
  Box box_;
  Fingerprint wanted_;
  const Chunk* chunk_ = nullptr;  // packed types only
  std::uint64_t size_ = 0;
  std::uint64_t next_ = 0;  // byte of the box
  std::uint64_t fingerprint_ = 0;
  std::array<std::byte, 16> element_{};  // the one that did not fit whole into the last read
};

}  // namespace ebb::formats
