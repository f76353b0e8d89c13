#include "ebb/formats/torch_save/ranks.h"

#include <algorithm>

#include "ebb/formats/torch_save/rank_describer.h"

namespace ebb::formats::torch_save {

bool names_shards(const SourceTree& tree, const RankFamily& family) {
  const auto source = tree.open(family.files.begin()->second);
  const auto file = source ? TorchFile::open(*source) : Result<TorchFile>(source.error());
  return file && std::ranges::any_of(file->graph().names(), [](const PickleGraph::Name& name) {
           return name.name.ends_with(".DTensor") || name.name.ends_with(".ShardedTensor");
         });
}

Result<std::unique_ptr<Checkpoint>> describe_ranks(const std::shared_ptr<const SourceTree>& tree,
                                                   std::span<const RankFamily> families) {
  RankDescriber describer(tree, "torch");
  describer.take_order();
  for (const RankFamily& family : families) {
    std::vector<PathItem> above;
    if (families.size() > 1)
      above.emplace_back(std::string(family.is_of_states() ? "optimizer" : "model"));
    auto added = describer.add(family, above);
    // What does not fit together may be no parts of one thing.
    if (!added && added.error().code == Code::layout && !describer.found_shards())
      return std::unique_ptr<Checkpoint>();
    EBB_TRY(std::move(added));
  }
  const bool one_rank = families.size() > 1 && describer.world() == 1;
  if (!describer.found_shards() && !one_rank) return std::unique_ptr<Checkpoint>();
  return describer.finish();
}

}  // namespace ebb::formats::torch_save
