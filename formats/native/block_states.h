// States that a store keeps in blocks of int8, read as the fp32 numbers they stand for. Their
// scales are no tensors of the checkpoint: they lie here.
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

class BlockStates {
 public:
  // Takes the scales of what is encoded out of `tensors`, and makes that fp32 where it is codes.
  // Code::corrupt names a state whose scales are not there or not whole; `files` are of messages.
  static Result<BlockStates> take(std::vector<TensorEntry>& tensors, const Catalog& files);

  // As Checkpoint::read_chunk() of an encoded chunk. `codes` reads what is stored of it, from a
  // byte on; `checkpoint` the scales.
  using Codes = std::function<Result<>(std::uint64_t first, std::span<std::byte> into)>;
  Result<> read(const Checkpoint& checkpoint, const TensorEntry& tensor, const Chunk& chunk,
                std::uint64_t first, std::span<std::byte> into, const Codes& codes) const;

 private:
  const TensorEntry& scales_of(const TensorEntry& tensor) const;

  std::map<std::pair<std::string, std::string>, TensorEntry> scales_;  // by parameter and state
};

}  // namespace ebb::formats::native
