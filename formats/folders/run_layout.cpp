// Folders of trainers that lay a save out in folders of their own. Sources: OLMo-core 2
// (train/checkpoint.py), NeMo AutoModel (recipes/base_recipe.py, components/checkpoint), prime-rl
// (trainer/ckpt.py), nanochat (checkpoint_manager.py).
#include <algorithm>
#include <optional>

#include "ebb/formats/folders/file_names.h"
#include "ebb/formats/folders/layout.h"

namespace ebb::formats::folders {
namespace {

using Kind = Part::Kind;
using Bytes = Part::Bytes;

void add_job(const SourceTree& tree, std::string key, std::string file, std::vector<Part>& parts) {
  if (tree.find(file) != nullptr)
    parts.push_back({Kind::job, Bytes::torch_save, std::move(key), {}, {}, {std::move(file)}});
}

// "train/rank3.pt" as "train_3".
void add_ranks(const SourceTree& tree, std::string_view begin, std::string_view key,
               std::vector<Part>& parts) {
  for (std::size_t rank = 0; rank < kMostRanks; ++rank) {
    const std::string number = std::to_string(rank);
    add_job(tree, std::string(key) + "_" + number, std::string(begin) + number + ".pt", parts);
  }
}

Part dcp_in(Kind kind, std::string folder, std::string key) {
  return {kind, Bytes::dcp, std::move(key), {}, std::move(folder), {}};
}

// What AutoModel's recipes register is a file each: step_scheduler.pt.
void add_registered(const SourceTree& tree, std::vector<Part>& parts) {
  for (const SourceTree::Entry& entry : tree.entries()) {
    const auto key = between(entry.name, "", ".pt");
    if (!key || !on_top(entry.name) || parts.size() >= kMostRanks) continue;
    add_job(tree, std::string(*key), entry.name, parts);
  }
}

// "model_000100.pt" -> "000100".
std::optional<std::string_view> step_of_nanochat(std::string_view name) {
  if (!number_between(name, "model_", ".pt")) return std::nullopt;
  return between(name, "model_", ".pt");
}

// Of each rank, or the one that there once was: "optim_000100_rank0.pt".
std::vector<std::string> optimizers_of_nanochat(const SourceTree& tree, const std::string& stem) {
  std::vector<std::string> files;
  for (std::size_t rank = 0; rank < kMostRanks; ++rank) {
    std::string file = stem + "_rank" + std::to_string(rank) + ".pt";
    if (tree.find(file) == nullptr) break;
    files.push_back(std::move(file));
  }
  if (files.size() == kMostRanks) return {};
  if (files.empty() && tree.find(stem + ".pt") != nullptr) files.push_back(stem + ".pt");
  return files;
}

}  // namespace

std::vector<Part> olmo_parts(const SourceTree& tree) {
  constexpr std::string_view kState = "model_and_optim";
  if (!holds_dcp(tree, kState)) return {};
  std::vector<Part> parts = {dcp_in(Kind::model, std::string(kState), "")};
  add_ranks(tree, "train/rank", "train", parts);
  return parts;
}

std::vector<Part> automodel_parts(const SourceTree& tree) {
  if (!holds_dcp(tree, "optim")) return {};
  std::vector<Part> parts;
  if (holds_dcp(tree, "model"))
    parts.push_back(dcp_in(Kind::model, "model", "model"));
  else if (holds_safetensors(tree, "model"))
    parts.push_back({Kind::model, Bytes::safetensors, "model", {}, "model", {}});
  else
    return {};
  parts.push_back(dcp_in(Kind::optimizer, "optim", ""));
  add_registered(tree, parts);
  add_ranks(tree, "rng/rng_dp_rank_", "rng", parts);
  add_ranks(tree, "dataloader/dataloader_dp_rank_", "dataloader", parts);
  return parts;
}

std::vector<Part> prime_rl_parts(const SourceTree& tree) {
  constexpr std::string_view kTrainer = "trainer";
  if (!holds_dcp(tree, kTrainer)) return {};
  std::vector<Part> parts = {dcp_in(Kind::model, std::string(kTrainer), "")};
  add_ranks(tree, "trainer/dataloader/rank_", "dataloader", parts);
  add_job(tree, "orchestrator", "orchestrator/progress.pt", parts);
  return parts;
}

std::vector<Part> nanochat_parts(const SourceTree& tree) {
  std::optional<std::string> newest;
  for (const SourceTree::Entry& entry : tree.entries()) {
    const auto step = step_of_nanochat(entry.name);
    if (!step || tree.find("meta_" + std::string(*step) + ".json") == nullptr) continue;
    const auto earlier = [](std::string_view a, std::string_view b) {
      return number_between(a, "", "") < number_between(b, "", "");
    };
    if (!newest || earlier(*newest, *step)) newest = *step;
  }
  if (!newest) return {};
  std::vector<Part> parts = {
      {Kind::model, Bytes::torch_save, "model", {}, {}, {"model_" + *newest + ".pt"}}};
  if (auto files = optimizers_of_nanochat(tree, "optim_" + *newest); !files.empty())
    parts.push_back({Kind::optimizer, Bytes::torch_save, "optimizer", {}, {}, std::move(files)});
  parts.push_back({Kind::job, Bytes::json, "meta", {}, {}, {"meta_" + *newest + ".json"}});
  return parts;
}

}  // namespace ebb::formats::folders
