// Sources: transformers 5.24 (trainer.py, utils/__init__.py), accelerate 1.15 (checkpointing.py,
// utils/fsdp_utils.py), Lightning 2.6 (strategies/fsdp.py, fabric/strategies/fsdp.py).
#include "ebb/formats/folders/layout.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "ebb/formats/dcp/dcp.h"
#include "ebb/formats/folders/file_names.h"

namespace ebb::formats::folders {
namespace {

using Kind = Part::Kind;
using Bytes = Part::Bytes;

constexpr std::size_t kMostModels = 64;  // and optimizers, of one save
constexpr std::string_view kIndex = ".index.json";

// "optimizer" of the first, "optimizer_1" of the next.
std::string numbered(std::string_view word, std::size_t number) {
  std::string name(word);
  if (number > 0) name.append("_").append(std::to_string(number));
  return name;
}

// Files that a model was cut into: "model-00001-of-00002.safetensors".
std::vector<std::string> shards(const SourceTree& tree, std::string_view stem,
                                std::string_view ending) {
  const std::string begin = std::string(stem) + "-";
  std::vector<std::string> names;
  for (const SourceTree::Entry& entry : tree.entries()) {
    const auto middle = between(entry.name, begin, ending);
    if (middle && on_top(entry.name) && middle->find("-of-") != std::string_view::npos)
      names.push_back(entry.name);
  }
  return names;
}

// One file, or an index and what a model was cut into.
std::optional<Part> model_called(const SourceTree& tree, std::string_view stem,
                                 std::string_view ending) {
  const std::string whole = std::string(stem).append(ending);
  const Bytes bytes = ending == ".safetensors" ? Bytes::safetensors : Bytes::torch_save;
  if (tree.find(whole) != nullptr) return Part{Kind::model, bytes, {}, {}, {}, {whole}};
  std::vector<std::string> files = shards(tree, stem, ending);
  const std::string index = whole + std::string(kIndex);
  if (tree.find(index) != nullptr) files.insert(files.begin(), index);
  if (files.empty()) return std::nullopt;
  return Part{Kind::model, bytes, {}, {}, {}, std::move(files)};
}

// The first of these that is there: what the frameworks' loaders prefer.
std::optional<Part> model_numbered(const SourceTree& tree, std::size_t number) {
  struct Name {
    std::string_view stem;
    std::string_view ending;
  };
  constexpr Name kNames[] = {{"model", ".safetensors"},
                             {"pytorch_model", ".bin"},
                             {"adapter_model", ".safetensors"},
                             {"adapter_model", ".bin"}};
  for (const auto& [stem, ending] : kNames)
    if (auto part = model_called(tree, numbered(stem, number), ending)) return part;
  return std::nullopt;
}

std::optional<Part> optimizer_numbered(const SourceTree& tree, std::size_t number) {
  for (const std::string_view ending : {".pt", ".bin"}) {
    std::string name = numbered("optimizer", number).append(ending);
    if (tree.find(name) != nullptr)
      return Part{Kind::optimizer, Bytes::torch_save, {}, {}, {}, {std::move(name)}};
  }
  return std::nullopt;
}

// accelerate's folder of one model or optimizer, which counts from 0.
std::optional<Part> folder_numbered(const SourceTree& tree, Kind kind, std::string_view word,
                                    std::size_t number) {
  std::string folder = std::string(word).append("_").append(std::to_string(number));
  if (!holds_dcp(tree, folder)) return std::nullopt;
  std::string its = kind == Kind::model ? "model" : "optimizer";
  return Part{kind, Bytes::dcp, {}, std::move(its), std::move(folder), {}};
}

std::optional<Part> fsdp_model(const SourceTree& tree, std::size_t number) {
  constexpr std::string_view kWord = "pytorch_model_fsdp";
  if (auto part = folder_numbered(tree, Kind::model, kWord, number)) return part;
  return model_called(tree, numbered(kWord, number), ".bin");
}

std::optional<Part> fsdp_optimizer(const SourceTree& tree, std::size_t number) {
  if (auto part = folder_numbered(tree, Kind::optimizer, "optimizer", number)) return part;
  return optimizer_numbered(tree, number);
}

// Counted until one is missing.
template <typename Find>
void add_numbered(const SourceTree& tree, std::string_view key, Find find,
                  std::vector<Part>& parts) {
  for (std::size_t number = 0; number < kMostModels; ++number) {
    std::optional<Part> part = find(tree, number);
    if (!part) return;
    part->key = numbered(key, number);
    parts.push_back(std::move(*part));
  }
}

// What the job keeps beside them.
void add_job(const SourceTree& tree, std::vector<Part>& parts) {
  const auto add = [&](std::string_view name, Bytes bytes) {
    if (tree.find(name) == nullptr) return;
    std::string key(name.substr(0, name.rfind('.')));
    parts.push_back({Kind::job, bytes, std::move(key), {}, {}, {std::string(name)}});
  };
  add(kStateFile, Bytes::json);
  for (const std::string_view name :
       {kSchedulerFile, std::string_view("scheduler.bin"), std::string_view("scaler.pt")})
    add(name, Bytes::torch_save);
  for (std::size_t number = 1; number < kMostModels; ++number)
    add(numbered("scheduler", number) + ".bin", Bytes::torch_save);
  add("rng_state.pth", Bytes::torch_save);
  for (const RankFiles& files : kRandomNumbers)
    for (std::size_t rank = 0; rank < kMostRanks; ++rank) add(files.of(rank), Bytes::torch_save);
}

template <typename Model, typename Optimizer>
std::vector<Part> parts_of(const SourceTree& tree, Model model, Optimizer optimizer) {
  std::vector<Part> parts;
  add_numbered(tree, "model", model, parts);
  const std::size_t models = parts.size();
  add_numbered(tree, "optimizer", optimizer, parts);
  if (models == 0 || parts.size() == models) return {};
  add_job(tree, parts);
  return parts;
}

// accelerate's save_state lays down random numbers of each process, and no state of a Trainer.
bool is_accelerates(const SourceTree& tree) {
  if (tree.find(kStateFile) != nullptr) return false;
  return std::ranges::any_of(tree.entries(), [](const SourceTree::Entry& entry) {
    return number_between(entry.name, "random_states_", ".pkl").has_value();
  });
}

// With trainer_state.json, or unsigned.
std::vector<Part> trainer_parts(const SourceTree& tree) {
  if (is_accelerates(tree)) return {};
  return parts_of(tree, model_numbered, optimizer_numbered);
}

std::vector<Part> accelerate_parts(const SourceTree& tree) {
  if (!is_accelerates(tree)) return {};
  return parts_of(tree, model_numbered, optimizer_numbered);
}

std::vector<Part> fsdp_parts(const SourceTree& tree) {
  return parts_of(tree, fsdp_model, fsdp_optimizer);
}

std::vector<Part> lightning_parts(const SourceTree& tree) {
  constexpr std::string_view kMeta = "meta.pt";
  if (tree.find(kMeta) == nullptr || !detect_dcp(tree)) return {};
  return {{Kind::model, Bytes::dcp, {}, {}, {}, {".metadata"}},
          {Kind::job, Bytes::torch_save, {}, {}, {}, {std::string(kMeta)}}};
}

}  // namespace

bool is_random_numbers(std::string_view key) {
  return key == "rng_state" || number_between(key, "rng_state_", "") ||
         number_between(key, "random_states_", "");
}

bool is_job_key(std::string_view key) {
  return key == "trainer_state" || key == "scheduler" || key == "scaler" ||
         number_between(key, "scheduler_", "") || is_random_numbers(key);
}

std::optional<JobFile> job_file(FolderKind kind, const std::string& key, TrainersOwn own) {
  static constexpr std::string_view kTrainers[] = {"python", "numpy", "cpu"};
  static constexpr std::string_view kAccelerates[] = {"random_state", "numpy_random_seed",
                                                      "torch_manual_seed"};
  if (key == "rng_state" || number_between(key, "rng_state_", ""))
    return JobFile{key + ".pth", kTrainers};
  if (key == "scaler" || (key == "scheduler" && own == TrainersOwn::yes))
    return JobFile{key + ".pt", {}};
  if (kind == FolderKind::trainer) return std::nullopt;
  if (key == "scheduler" || number_between(key, "scheduler_", "")) return JobFile{key + ".bin", {}};
  if (number_between(key, "random_states_", "")) return JobFile{key + ".pkl", kAccelerates};
  return std::nullopt;
}

std::vector<Part> parts_in(FolderKind kind, const SourceTree& tree) {
  constexpr std::vector<Part> (*kParts[])(const SourceTree& tree) = {
      trainer_parts, accelerate_parts, fsdp_parts,     lightning_parts,
      olmo_parts,    automodel_parts,  prime_rl_parts, nanochat_parts};
  return kParts[static_cast<std::size_t>(kind)](tree);
}

std::size_t ranks_with_files(const SourceTree& tree) {
  constexpr RankFiles kOwn[] = {kRandomNumbers[0],
                                kRandomNumbers[1],
                                {"train/rank", ".pt"},
                                {"rng/rng_dp_rank_", ".pt"},
                                {"trainer/dataloader/rank_", ".pt"}};
  std::size_t ranks = tree.find("rng_state.pth") == nullptr ? 0 : 1;
  for (const SourceTree::Entry& entry : tree.entries())
    for (const auto& [begin, end] : kOwn)
      if (const auto rank = number_between(entry.name, begin, end))
        ranks = std::max<std::size_t>(ranks, *rank + std::size_t{1});
  return ranks;
}

}  // namespace ebb::formats::folders

namespace ebb::formats {

std::string_view missing_half(const SourceTree& tree) {
  constexpr std::string_view kModel = "pytorch_model_fsdp_0", kOptimizer = "optimizer_0";
  const bool model = folders::holds_dcp(tree, kModel);
  if (model == folders::holds_dcp(tree, kOptimizer)) return {};
  return model ? kOptimizer : kModel;
}

}  // namespace ebb::formats
