// Where in a tree of files a Megatron checkpoint lies, and of which kind it is. Internal to
// formats/megatron.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "ebb/formats/catalog/catalog.h"

namespace ebb::formats::megatron {

constexpr std::string_view kTracker = "latest_checkpointed_iteration.txt";
constexpr std::string_view kConfig = "metadata.json";
constexpr std::uint64_t kMaxConfig = std::uint64_t{64} << 10;
constexpr std::string_view kCommon = "common.pt";
constexpr std::string_view kRankFolder = "mp_rank_";
constexpr std::string_view kCommonKey = "common_state/shard_0_1";

enum class Kind : std::uint8_t {
  none,        // nothing of Megatron's here
  torch_dist,  // whole or not
  fsdp,
  by_rank,  // --ckpt-format torch: a folder mp_rank_XX for each rank
};

struct Place {
  Kind kind = Kind::none;
  std::string folder;  // "iter_0000010", "release"; "" when the tree is the folder itself
};

// Reads the tracker (at most 64 bytes), metadata.json (64 KiB) and, where those leave it open,
// looks for Megatron's words in the first 64 MiB of .metadata. A damaged tracker gives torch_dist
// with no folder: find_place says what is wrong.
Place look_for_place(const SourceTree& tree);

// The same, with errors. REQUIRES: look_for_place found something.
Result<Place> find_place(const SourceTree& tree);

// "iter_0000010"
std::string iteration_folder(std::int64_t iteration);

// One sentence when the folder's name and the stored iteration differ: "" when they agree, or one
// of them is not known.
std::string iterations_that_differ(const Catalog& catalog);

}  // namespace ebb::formats::megatron
