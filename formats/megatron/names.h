// Megatron's keys: which parameter and which state a torch_dist key is, and the other way round.
// Internal to formats/megatron.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/formats/layout/box.h"

namespace ebb::formats::megatron {

struct Key {
  std::string name;
  std::string state;
  std::uint32_t optimizer = 0;  // N of chained_N; 0 where there is one optimizer, or none
};

// `[chained_N.]optimizer.state.<state>.<name>`, where the states `param` and `fp32_param` are
// master weights; `<bucket>.<state>` of dp_reshardable; everything else is a parameter of that
// name.
Key parsed_key(std::string_view key);

// Takes "chained_<N>." off the front of a key and gives N; nullopt: it does not begin so.
std::optional<std::uint32_t> take_chained(std::string_view& key);

// True when the key's state belongs to an optimizer.
bool is_optimizer_key(std::string_view key);

// `...dp_group_idx_N.gbuf_idx_N.dtype_(...).bucket_idx_N`: a flat bucket of dp_reshardable.
bool is_bucket_name(std::string_view name);

// `<key>/shard_<offsets>_<shape>`: a sharded object, as megatron-core takes its name apart. Of old
// ones the last number of the shape is not there.
struct ObjectKey {
  std::string name;
  std::vector<std::uint64_t> offsets, shape;
};
std::optional<ObjectKey> object_key(std::string_view key);
inline bool is_object_key(std::string_view key) { return object_key(key).has_value(); }

// Names a part of one, as a format without such objects (torch.save) takes it apart: its key, and
// the way to the part behind it.
bool is_object_part(std::string_view key);
inline constexpr std::string_view kObjectPart =
    "is a part of a sharded object, which Megatron stores and loads in one piece";

// A value of another format that is called as the one that says where these lie.
inline constexpr std::string_view kOtherFolder =
    "value \"folder\": Megatron's folder is called after the step";

// A state that no key of Megatron's spells: a dot in its name parts it.
inline constexpr std::string_view kOtherState =
    "Megatron's keys hold a state's name up to a dot, and would say another state of another "
    "parameter";

// Axes in front of a parameter's own shape: homogeneous layers and experts are stacked.
std::size_t stacked_axes(std::string_view name);

}  // namespace ebb::formats::megatron
