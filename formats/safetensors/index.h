// The small JSON documents beside or inside the files: model.safetensors.index.json, the
// DCP_SHARDING_INFO that torch DCP's HuggingFaceStorageWriter puts into __metadata__, and our own
// note about tensors whose key does not tell their name and state.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "ebb/formats/core/byte_source.h"
#include "ebb/formats/safetensors/naming.h"

namespace ebb::formats::safetensors {

constexpr std::uint64_t kMaxIndexBytes = 256'000'000;

struct Index {
  struct Weight {
    std::string key;
    std::string file;
  };
  std::vector<Weight> weights;              // in the index's order
  std::optional<std::uint64_t> total_size;  // bytes of all tensors, where it says so
  std::vector<std::string> unread;          // other fields of its metadata
};

// File names are plain: nothing outside the checkpoint's own directory can be named.
Result<Index> read_index(const ByteSource& source);

struct SavedShard {
  Shape offsets;                           // of the stored box in the whole tensor
  std::optional<std::string> logical_fqn;  // where several boxes of one tensor lie in one file
};
using ShardingInfo = std::unordered_map<std::string, SavedShard>;

// `file` is for messages.
Result<ShardingInfo> read_sharding_info(const std::string& file, std::string_view json);

Result<IdentityMap> read_identity(const std::string& file, std::string_view json);

}  // namespace ebb::formats::safetensors
