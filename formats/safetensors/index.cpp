#include "ebb/formats/safetensors/index.h"

#include "ebb/formats/json/json_reader.h"

namespace ebb::formats::safetensors {

Result<ShardingInfo> read_sharding_info(const std::string& file, std::string_view text) {
  json::Reader json({file + ": DCP_SHARDING_INFO", 0, "DCP_SHARDING_INFO"}, text);
  ShardingInfo info;
  EBB_TRY(json.read([&](std::string_view key, json::Value value) -> Result<> {
    SavedShard& shard = info[std::string(key)];
    return json.fields(value, {"", key}, [&](std::string_view name, json::Value item) -> Result<> {
      if (name == "saved_offsets")
        return json.wholes(item, {"", key, ": saved_offsets"}, shard.offsets);
      if (name == "logical_fqn") {
        EBB_TRY_ASSIGN(shard.logical_fqn, json.string(item, {"", key, ": logical_fqn"}));
      }
      return {};
    });
  }));
  return info;
}

Result<IdentityMap> read_identity(const std::string& file, std::string_view text) {
  json::Reader json({compose("{}: {}", file, kIdentityKey), 0, std::string(kIdentityKey)}, text);
  IdentityMap identity;
  EBB_TRY(json.read([&](std::string_view key, json::Value value) -> Result<> {
    NamedState& named = identity[std::string(key)];
    return json.fields(value, {"", key}, [&](std::string_view name, json::Value item) -> Result<> {
      if (name == "name") {
        EBB_TRY_ASSIGN(named.name, json.string(item, {"", key, ": name"}));
      } else if (name == "state") {
        EBB_TRY_ASSIGN(named.state, json.string(item, {"", key, ": state"}));
      }
      return {};
    });
  }));
  return identity;
}

}  // namespace ebb::formats::safetensors
