// The index beside files that a model was cut into: model.safetensors.index.json,
// pytorch_model.bin.index.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ebb/formats/core/byte_source.h"

namespace ebb::formats {

constexpr std::uint64_t kMaxIndexBytes = 256'000'000;

struct WeightIndex {
  struct Weight {
    std::string key;
    std::string file;
  };
  std::vector<Weight> weights;              // in the index's order
  std::optional<std::uint64_t> total_size;  // bytes of all tensors, where it says so
  std::vector<std::string> unread;          // other fields of its metadata
};

// File names are plain: nothing outside the checkpoint's own directory can be named.
Result<WeightIndex> read_weight_index(const ByteSource& source);

}  // namespace ebb::formats
