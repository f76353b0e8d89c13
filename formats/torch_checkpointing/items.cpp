#include "ebb/formats/torch_checkpointing/items.h"

#include <algorithm>
#include <set>

#include "ebb/formats/core/compose.h"
#include "ebb/formats/core/number_text.h"
#include "ebb/formats/torch/mesh_of.h"
#include "ebb/formats/torch_save/ranks.h"

namespace ebb::formats::torch_checkpointing {
namespace {

struct NamedFile {
  std::string_view item;
  std::uint32_t rank = 0;
};

// "optim_12.pt"
std::optional<NamedFile> named_file(std::string_view name) {
  constexpr std::string_view kEnding = ".pt";
  if (!name.ends_with(kEnding) || name.find('/') != std::string_view::npos) return std::nullopt;
  name.remove_suffix(kEnding.size());
  const std::size_t bar = name.rfind('_');
  if (bar == 0 || bar == std::string_view::npos) return std::nullopt;
  const std::string_view digits = name.substr(bar + 1);
  const auto rank = parse_number<std::uint32_t>(digits);
  if (!rank || (digits.size() > 1 && digits.front() == '0')) return std::nullopt;
  return NamedFile{name.substr(0, bar), *rank};
}

// `parts`: how many files there should be; 0: as many as there are.
torch_save::RankFamily family_of(const std::string& item, std::uint32_t parts) {
  return {{.family = item + "_*.pt", .number = "0", .parts = parts}, {}};
}

}  // namespace

std::vector<Item> items_in(const SourceTree& tree, const Metadata& metadata) {
  std::set<std::string_view> names;
  for (const SourceTree::Entry& entry : tree.entries()) names.insert(entry.name);
  std::vector<Item> items;
  for (const auto& [name, said] : metadata.items) {
    Item item{name, family_of(name, metadata.world)};
    for (std::uint32_t rank = 0; rank < metadata.world; ++rank) {
      const auto own = said.files.find(rank);
      std::string file = own != said.files.end() ? own->second : compose("{}_{}.pt", name, rank);
      auto& files = names.contains(file) ? item.family.files : item.family.absent;
      files.emplace(rank, std::move(file));
    }
    items.push_back(std::move(item));
  }
  std::map<std::string, torch_save::RankFamily> others;
  for (const std::string_view name : names) {
    const auto file = named_file(name);
    if (!file || file->rank >= metadata.world) continue;
    std::string item(file->item);
    if (metadata.items.contains(item)) continue;
    others.try_emplace(item, family_of(item, 0)).first->second.files.emplace(file->rank, name);
  }
  for (auto& [name, family] : others) items.push_back({name, std::move(family)});
  return items;
}

bool may_have_items(const SourceTree& tree) {
  const auto& entries = tree.entries();
  return entries.size() == 1 || std::ranges::any_of(entries, [](const SourceTree::Entry& entry) {
           return entry.name.ends_with(".pt") &&
                  entry.name.find_first_of("0123456789") != std::string::npos;
         });
}

Metadata metadata_of_files(const SourceTree& tree) {
  Metadata metadata;
  for (const SourceTree::Entry& entry : tree.entries())
    if (const auto file = named_file(entry.name); file && file->rank < kMostRanks)
      metadata.world = std::max(metadata.world, file->rank + 1);
  return metadata;
}

bool are_items(const SourceTree& tree) {
  if (tree.find(kMetadataFile) != nullptr) return false;
  // Others write the word before the number: model_world_size_2_rank_0.pt.
  const auto is_other = [](const SourceTree::Entry& entry) {
    const auto file = named_file(entry.name);
    return entry.name.ends_with(".pt") && entry.name.find('/') == std::string::npos &&
           (!file || file->item.ends_with("rank"));
  };
  const Metadata metadata = metadata_of_files(tree);
  if (metadata.world == 1 || std::ranges::any_of(tree.entries(), is_other)) return false;
  std::vector<torch_save::RankFamily> families;
  for (Item& item : items_in(tree, metadata)) families.push_back(std::move(item.family));
  return families.size() > 1 && !torch_save::are_one_save(families) &&
         std::ranges::any_of(families, [&](const torch_save::RankFamily& family) {
           return torch_save::names_shards(tree, family);
         });
}

}  // namespace ebb::formats::torch_checkpointing
