// Where in a tree of files a Megatron checkpoint lies, and of which kind it is. Internal to
// formats/megatron.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "ebb/formats/core/byte_source.h"

namespace ebb::formats {

constexpr std::string_view kMegatronTracker = "latest_checkpointed_iteration.txt";
constexpr std::string_view kMegatronConfig = "metadata.json";
constexpr std::string_view kMegatronCommon = "common.pt";
constexpr std::string_view kMegatronCommonKey = "common_state/shard_0_1";

enum class MegatronKind : std::uint8_t {
  none,        // nothing of Megatron's here
  torch_dist,  // whole or not
  fsdp,
};

struct MegatronPlace {
  MegatronKind kind = MegatronKind::none;
  std::string folder;  // "iter_0000010", "release"; "" when the tree is the folder itself
};

// Reads the tracker (at most 64 bytes), metadata.json (64 KiB) and, where those leave it open,
// looks for Megatron's words in the first 64 MiB of .metadata. A damaged tracker gives torch_dist
// with no folder: find_megatron says what is wrong.
MegatronPlace look_for_megatron(const SourceTree& tree);

// The same, with errors. REQUIRES: look_for_megatron found something.
Result<MegatronPlace> find_megatron(const SourceTree& tree);

// "iter_0000010"
std::string iteration_folder(std::int64_t iteration);

// The files below `folder` of a tree, as a tree of their own; `folder` "" gives all.
std::shared_ptr<const SourceTree> folder_of(std::shared_ptr<const SourceTree> tree,
                                            const std::string& folder);

}  // namespace ebb::formats
