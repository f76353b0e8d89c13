// The small JSON documents inside the files: the DCP_SHARDING_INFO that torch DCP's
// HuggingFaceStorageWriter puts into __metadata__, and our own note about tensors whose key does
// not tell their name and state.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "ebb/formats/core/byte_source.h"
#include "ebb/formats/safetensors/naming.h"

namespace ebb::formats::safetensors {

struct SavedShard {
  Shape offsets;                           // of the stored box in the whole tensor
  std::optional<std::string> logical_fqn;  // where several boxes of one tensor lie in one file
};
using ShardingInfo = std::unordered_map<std::string, SavedShard>;

// `file` is for messages.
Result<ShardingInfo> read_sharding_info(const std::string& file, std::string_view json);

Result<IdentityMap> read_identity(const std::string& file, std::string_view json);

}  // namespace ebb::formats::safetensors
