#include "ebb/formats/catalog/known_files.h"

#include <algorithm>
#include <iterator>

namespace ebb::formats {
namespace {

using Role = BesideEntry::Role;

// A name that begins and ends so. Where `begin` has a '/', the folder's name counts, too.
struct Name {
  std::string_view begin;
  std::string_view end;
};
struct Known {
  Name name;
  KnownFile file;
};

constexpr KnownFile kRandom = {Role::job, "states of random number generators"};
constexpr KnownFile kScheduler = {Role::job, "a learning rate's scheduler"};
constexpr KnownFile kLoader = {Role::job, "how far the data was read"};
constexpr KnownFile kText = {Role::harmless, "text"};
constexpr KnownFile kTokenizer = {Role::harmless, "a tokenizer"};
constexpr KnownFile kWeights = {Role::weights, "a model's weights"};
constexpr KnownFile kStates = {Role::states, "an optimizer's states"};

// The first that fits counts. Sources: transformers 5.24 (trainer.py), accelerate 1.15
// (checkpointing.py), Lightning 2.5 (strategies/fsdp.py), OLMo, verl, prime-rl and NeMo AutoModel
// (their checkpointers).
constexpr Known kKnown[] = {
    {{"rng", ".pt"}, kRandom},
    {{"rng", ".pth"}, kRandom},
    {{"random_states_", ".pkl"}, kRandom},
    {{"scheduler", ".pt"}, kScheduler},
    {{"scheduler", ".bin"}, kScheduler},
    {{"lr_scheduler", ".pt"}, kScheduler},
    {{"scaler", ".pt"}, {Role::job, "a gradient scaler"}},
    {{"training_args.bin", ""},
     {Role::job, "the arguments of transformers' Trainer", " transformers accelerate "}},
    {{"trainer_state.json", ""}, {Role::job, "how far transformers' Trainer was"}},
    {{"dl_state_dict", ""}, kLoader},
    {{"dataloader", ".pt"}, kLoader},
    {{"train_dataloader", ".pt"}, kLoader},
    {{"data.pt", ""}, kLoader},  // verl's
    {{"dataloader/", ".pt"}, kLoader},
    {{"orchestrator/", ".pt"}, {Role::job, "how far prime-rl's orchestrator was"}},
    {{"step_scheduler.pt", ""}, {Role::job, "how far AutoModel was"}},
    {{"dataloader", ".pkl"}, kLoader},
    {{"sampler", ".bin"}, kLoader},
    {{"sampler", ".pt"}, kLoader},
    {{"train_state.pt", ""}, {Role::job, "how far Megatron Bridge was"}},
    {{"latest_train_state.pt", ""}, {Role::job, "how far Megatron Bridge was"}},
    {{"custom_checkpoint_", ".pkl"}, {Role::job, "an object that the job registered"}},
    {{"meta.pt", ""}, {Role::job, "Lightning's step, epoch, schedulers and hyper-parameters"}},
    {{"common.pt", ""}, {Role::job, "Megatron's arguments and step"}},
    {{"extra_state", ".pt"}, {Role::job, "a rank's scheduler and random numbers"}},
    {{"train/rank", ".pt"}, {Role::job, "a rank's trainer: step, data, random numbers"}},
    {{"optim", ".json"}, kText},
    {{"tokenizer.model", ""}, kTokenizer},
    {{"tokenizer", ".json"}, kTokenizer},
    {{"vocab", ".bpe"}, kTokenizer},
    {{"spiece.model", ""}, kTokenizer},
    {{"sentencepiece", ".model"}, kTokenizer},
    {{"events.out.tfevents", ""}, {Role::harmless, "a log"}},
    {{".git", ""}, kText},
    {{"README", ""}, kText},
    {{"LICENSE", ""}, kText},
    {{"", ".json"}, kText},
    {{"", ".jsonl"}, kText},
    {{"", ".txt"}, kText},
    {{"", ".md"}, kText},
    {{"", ".py"}, kText},
    {{"", ".sh"}, kText},
    {{"", ".yaml"}, kText},
    {{"", ".yml"}, kText},
    {{"", ".toml"}, kText},
    {{"", ".csv"}, kText},
    {{"", ".jinja"}, kText},
    {{"", ".html"}, kText},
    {{"", ".xml"}, kText},
    {{"", ".ini"}, kText},
    {{"", ".cfg"}, kText},
    {{"", ".tsv"}, kText},
    {{"", ".ipynb"}, kText},
    {{"", ".lock"}, {Role::harmless, "a lock"}},
    {{"lock", ""}, {Role::harmless, "the lock of a swap directory of Ebb's"}},
    {{"", ".log"}, {Role::harmless, "a log"}},
    {{"", ".out"}, {Role::harmless, "a log"}},
    {{"", ".err"}, {Role::harmless, "a log"}},
    {{"", ".png"}, {Role::harmless, "a picture"}},
    {{"", ".jpg"}, {Role::harmless, "a picture"}},
    {{"", ".svg"}, {Role::harmless, "a picture"}},
    {{"model_optim_rng.pt", ""}, {Role::weights, "a rank of Megatron's --ckpt-format torch"}},
    {{"pytorch_model", ".bin"}, kWeights},
    {{"adapter_model", ""}, {Role::weights, "an adapter's weights"}},
    {{"model", ".safetensors"}, kWeights},
    {{"tf_model", ".h5"}, {Role::weights, "a model's weights for TensorFlow"}},
    {{"flax_model", ".msgpack"}, {Role::weights, "a model's weights for Flax"}},
    {{"", ".onnx"}, {Role::weights, "a model as ONNX has it"}},
    {{"", ".gguf"}, {Role::weights, "a model as llama.cpp has it"}},
};

// A file whose name speaks of an optimizer and ends as tensors do is taken at its word.
bool speaks_of_states(std::string_view file) {
  constexpr std::string_view kEndings[] = {".pt", ".pth", ".bin", ".ckpt", ".pkl", ".safetensors"};
  return names_an_optimizer(file) &&
         std::ranges::any_of(kEndings, [&](auto ending) { return file.ends_with(ending); });
}

// The last component of a path, or the last two.
std::string_view last_of(std::string_view path, std::size_t components) {
  std::size_t at = path.size();
  while (components-- > 0 && at != std::string_view::npos && at != 0) at = path.rfind('/', at - 1);
  return at == std::string_view::npos || at == 0 ? path : path.substr(at + 1);
}

bool fits(const Name& name, std::string_view path) {
  const bool with_folder = name.begin.find('/') != std::string_view::npos;
  const std::string_view text = last_of(path, with_folder ? 2 : 1);
  return text.size() >= name.begin.size() + name.end.size() && text.starts_with(name.begin) &&
         text.ends_with(name.end);
}

}  // namespace

std::string_view name_of(BesideEntry::Role role) {
  constexpr std::string_view kNames[] = {"states", "weights",  "checkpoint",
                                         "job",    "harmless", "unknown"};
  return kNames[static_cast<std::size_t>(role)];
}

std::optional<KnownFile> known_file(std::string_view path) {
  const auto* const known =
      std::ranges::find_if(kKnown, [&](const Known& one) { return fits(one.name, path); });
  if (known != std::end(kKnown)) return known->file;
  if (speaks_of_states(last_of(path, 1))) return kStates;
  return std::nullopt;
}

bool holds_nothing_trained(std::string_view path) {
  const auto known = known_file(path);
  return known && (known->role == Role::job || known->role == Role::harmless);
}

bool names_an_optimizer(std::string_view file) {
  constexpr std::string_view kWord = "optim";
  for (std::size_t at = file.find(kWord); at != std::string_view::npos;
       at = file.find(kWord, at + 1)) {
    const std::string_view rest = file.substr(at + kWord.size());
    const bool word = rest.empty() || rest.front() < 'a' || rest.front() > 'z';
    if (word || rest.starts_with("izer")) return true;
  }
  return false;
}

std::string without_numbers(std::string_view name) {
  std::string out;
  for (const char c : name)
    if (c < '0' || c > '9')
      out += c;
    else if (out.empty() || out.back() != '#')
      out += '#';
  return out;
}

bool is_pointer_file(std::string_view path) {
  constexpr std::string_view kPointers[] = {"latest", "latest_universal", "metadata.json",
                                            "integrity.json", "latest_checkpointed_iteration.txt"};
  const std::string_view file = last_of(path, 1);
  return std::ranges::find(kPointers, file) != std::end(kPointers) || file.ends_with(".index.json");
}

}  // namespace ebb::formats
