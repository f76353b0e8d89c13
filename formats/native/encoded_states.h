// States that a store keeps in two parts, in blocks of int8 with scales or as low halves with high
// ones, read as the fp32 numbers they stand for. The other parts are no tensors of the checkpoint:
// they lie here.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ebb/formats/catalog/catalog.h"

namespace ebb::formats::native {

// A chunk's tag: its tile, and how its elements are encoded (Segment::encoding).
constexpr std::uint64_t tag_of(std::uint64_t tile, std::uint32_t encoding) {
  return tile | std::uint64_t{encoding} << 32;
}
constexpr std::uint64_t tile_of(const Chunk& chunk) { return chunk.tag & 0xffffffffu; }
constexpr std::uint32_t encoding_of(const Chunk& chunk) {
  return static_cast<std::uint32_t>(chunk.tag >> 32);
}

class EncodedStates {
 public:
  // Takes the scales and high halves of what is encoded out of `tensors`, and makes that fp32 where
  // it is codes or low halves. Code::corrupt names a state of which they are not there or not
  // whole; `files` are of messages.
  static Result<EncodedStates> take(std::vector<TensorEntry>& tensors, const Catalog& files);

  // As Checkpoint::read_chunk() of an encoded chunk. `stored` reads what is stored of it, from a
  // byte on; `checkpoint` the scales or high halves.
  using Stored = std::function<Result<>(std::uint64_t first, std::span<std::byte> into)>;
  Result<> read(const Checkpoint& checkpoint, const TensorEntry& tensor, const Chunk& chunk,
                std::uint64_t first, std::span<std::byte> into, const Stored& stored) const;

 private:
  const TensorEntry& other_of(const TensorEntry& tensor) const;
  // Elements of the chunk from `begin` on, whose first is `chunk_first` of the tensor.
  Result<> scale_codes(const Checkpoint& checkpoint, const TensorEntry& tensor,
                       std::uint64_t chunk_first, std::uint64_t begin, std::span<float> values,
                       const Stored& stored) const;
  Result<> join_halves(const Checkpoint& checkpoint, const TensorEntry& tensor,
                       std::uint64_t chunk_first, std::uint64_t begin, std::span<float> values,
                       const Stored& stored) const;

  std::map<std::pair<std::string, std::string>, TensorEntry> others_;  // by parameter and state
};

}  // namespace ebb::formats::native
