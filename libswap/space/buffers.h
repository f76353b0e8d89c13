// Buffers: what a trainer registers with a SwapSpace, where it lies in tiles, and what a manifest
// says of it. Pure arithmetic: no I/O, no memory.
//
// A buffer is one or more parts that are needed together: runs of elements of tensors' states. It
// lies in one extent, a run of consecutive tiles: a large buffer in one of its own, as many small
// ones as fit in a tile that they share.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ebb/formats/native/manifest.h"
#include "ebb/libswap/store/alike.h"

namespace ebb::libswap {

// Elements [range.first, + count) of the row-major tensor `shape`: what this rank keeps of one
// state of a tensor. All ranks register the same tensors, each its own range, perhaps none of it.
struct BufferPart {
  std::string tensor;
  std::string state;  // "master", "momentum_buffer", ...: any name
  DType dtype = DType::f32;
  Shape shape;
  FlatRange range;
};

enum class BufferId : std::uint32_t {};
constexpr std::uint32_t index_of(BufferId buffer) { return static_cast<std::uint32_t>(buffer); }

class Buffers {
 public:
  static constexpr std::uint64_t kAlignBytes = 64;  // of each part in its buffer, and of buffers

  struct Part {
    BufferPart described;
    std::uint64_t offset = 0;  // in its buffer
    std::uint64_t bytes = 0;
  };
  struct Buffer {
    std::string name;  // for messages: "layer.0 (master, momentum_buffer)"
    std::vector<Part> parts;
    std::uint64_t bytes = 0;  // 0: this rank has nothing of it
    std::uint32_t extent = 0;
    std::uint64_t offset = 0;  // in its extent
  };
  struct Extent {
    std::uint64_t first_tile = 0;
    std::uint64_t tiles = 0;
    std::vector<std::uint32_t> buffers;
  };

  // Code::usage, Code::layout, Code::unsupported name the tensor that cannot be registered.
  Result<BufferId> add(std::vector<BufferPart> parts);
  // Into tiles, in the order of add().
  void lay(std::uint64_t tile_bytes);

  const std::vector<Buffer>& all() const { return buffers_; }
  const std::vector<Extent>& extents() const { return extents_; }
  std::uint64_t tiles() const { return tiles_; }
  std::uint64_t most_tiles() const;  // of an extent

  // Everything but what a cut knows. The same on every rank, but for the tiles.
  formats::native::Manifest manifest() const;
  // What all ranks must have been told alike, and its digest.
  std::vector<Setting> settings() const;
  std::uint64_t digest() const;
  // Collective. Code::layout on every rank unless each element of each tensor is kept by exactly
  // one rank.
  Result<> prove_shares(Ranks& ranks) const;

 private:
  Result<> add_tensor(const BufferPart& part);

  using Name = std::pair<std::string, std::string>;  // tensor, state
  // Entries of the manifest, and which of them is whose.
  struct Numbers {
    std::vector<formats::native::Param> params;
    std::map<Name, std::uint32_t> param_of;
  };
  Numbers numbers() const;
  std::uint32_t state_of(const BufferPart& part) const;

  std::uint64_t tile_bytes_ = 0;
  std::uint64_t tiles_ = 0;
  std::vector<Buffer> buffers_;
  std::vector<Extent> extents_;
  std::set<Name> names_;
  std::vector<std::string> states_;
};

}  // namespace ebb::libswap
