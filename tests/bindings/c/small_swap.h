// A trainer's own state that tests of ebb.h page: buffers of two tensors' states.
#pragma once

#include <array>
#include <string>

#include "bindings/c/ebb.h"

namespace ebb::c {

struct SmallSwap {
  static constexpr std::uint32_t kBuffers = 4, kParts = 2;
  static constexpr std::uint64_t kRows = 40, kRow = 32;
  const std::uint64_t shape[2] = {kRows, kRow};
  std::array<std::string, kBuffers> names;
  std::array<ebb_swap_part, kBuffers * kParts> parts = {};
  ebb_swap_config config = {};

  // Of its rows a rank keeps what torch.chunk() gives it.
  explicit SmallSwap(const std::string& directory, std::uint32_t rank = 0, std::uint32_t world = 1)
      : directory_(directory) {
    const std::uint64_t rows = (kRows + world - 1) / world, first = rank * rows;
    for (std::uint32_t i = 0; i < parts.size(); ++i) {
      names[i / kParts] = "w" + std::to_string(i / kParts);
      ebb_swap_part& part = parts[i];
      part.size = sizeof(part);
      part.tensor = names[i / kParts].c_str();
      part.state = i % kParts == 0 ? "master" : "exp_avg";
      part.shape = shape;
      part.ndim = 2;
      part.dtype = i % kParts == 0 ? EBB_F32 : EBB_BF16;
      part.buffer = i / kParts;
      part.first = first * kRow;
      part.elems = (rows < kRows - first ? rows : kRows - first) * kRow;
    }
    config.size = sizeof(config);
    config.directory = directory_.c_str();
    config.parts = parts.data();
    config.part_count = static_cast<std::uint32_t>(parts.size());
    config.budget_bytes = 64 << 10;
    config.tile_bytes = 4096;
  }
  SmallSwap(const SmallSwap&) = delete;
  SmallSwap& operator=(const SmallSwap&) = delete;

  std::uint64_t elems() const { return parts[0].elems; }

 private:
  const std::string directory_;
};

}  // namespace ebb::c
