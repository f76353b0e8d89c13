// Which files of a folder are whose rank's of which item. Internal to formats/torch_checkpointing.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ebb/formats/torch_checkpointing/metadata.h"
#include "ebb/formats/torch_save/rank_files.h"

namespace ebb::formats::torch_checkpointing {

struct Item {
  std::string name;
  torch_save::RankFamily family;
};

// Those that the metadata lists, then those that only their files tell.
std::vector<Item> items_in(const SourceTree& tree, const Metadata& metadata);

// Whether what lies beside metadata.pkl, if anything does, can be its items.
bool may_have_items(const SourceTree& tree);

// Without metadata.pkl, which is written where some item has a resharder: whether the files are
// ranks' of items, with parts of tensors in them that no other format would put together.
bool are_items(const SourceTree& tree);
// What is said then: how many ranks there are.
Metadata metadata_of_files(const SourceTree& tree);

// How the note begins that lists items without metadata, which are not dealt to other ranks.
inline constexpr std::string_view kUndealt = "each rank loads its own file, and nothing else, of ";

// The same of those among them whose tensors are in parts.
inline constexpr std::string_view kUndealtParts = "no metadata says which rank has what of ";

}  // namespace ebb::formats::torch_checkpointing
