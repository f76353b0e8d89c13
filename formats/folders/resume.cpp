// Sources: transformers 5.24's trainer.py (_load_from_checkpoint, _load_optimizer_and_scheduler,
// _load_rng_state), accelerate 1.15's checkpointing.py and utils/fsdp_utils.py, Lightning 2.6's
// strategies/fsdp.py.
#include <algorithm>
#include <array>
#include <optional>
#include <ranges>
#include <string>

#include "ebb/formats/catalog/adapter.h"
#include "ebb/formats/dcp/dcp.h"
#include "ebb/formats/folders/file_names.h"
#include "ebb/formats/folders/fit.h"
#include "ebb/formats/folders/folders.h"

namespace ebb::formats {
namespace {

bool has_file(const Catalog& catalog, std::string_view name) {
  return std::ranges::find(catalog.files, name, &FileEntry::name) != catalog.files.end();
}

bool does_not_fit(const ResumeQuestion& question) {
  return !folders::fit_of(question.catalog).fits();
}
std::string why_not(const ResumeQuestion& question) {
  return folders::fit_of(question.catalog).why();
}

// accelerate alone calls the files of a job otherwise, and takes the scheduler's as it comes.
bool is_trainers(const Catalog& catalog) {
  return has_file(catalog, folders::kStateFile) || has_file(catalog, folders::kSchedulerFile) ||
         std::ranges::any_of(catalog.files, [](const FileEntry& file) {
           return file.name.starts_with("rng_state") && file.name.ends_with(".pth");
         });
}

bool lacks_state(const ResumeQuestion& question) {
  return !has_file(question.catalog, folders::kStateFile);
}

bool lacks_state_of_trainers(const ResumeQuestion& question) {
  return is_trainers(question.catalog) && lacks_state(question);
}

bool lacks_scheduler(const ResumeQuestion& question) {
  return is_trainers(question.catalog) && !has_file(question.catalog, folders::kSchedulerFile);
}

// The first file of random numbers that one of the ranks has left, and another has not.
std::optional<std::string> missing_random_numbers(const Catalog& catalog) {
  const std::size_t ranks = std::min<std::size_t>(catalog.world, folders::kMostRanks);
  for (const folders::RankFiles& files : folders::kRandomNumbers) {
    const auto lacks = [&](std::size_t rank) { return !has_file(catalog, files.of(rank)); };
    const auto all = std::views::iota(std::size_t{0}, ranks);
    const auto missing = std::ranges::find_if(all, lacks);
    if (missing != all.end() && !std::ranges::all_of(all, lacks)) return files.of(*missing);
  }
  return std::nullopt;
}

using Says = ResumeRule::Says;
constexpr ResumeRule kOfTwoModels{.says = Says::no, .applies = does_not_fit, .tell = why_not};
constexpr ResumeRule kNoScheduler{
    Says::no, lacks_scheduler,
    "scheduler.pt is missing: Trainer then loads the optimizer's states neither, and goes on with "
    "a new optimizer without a word"};
constexpr ResumeRule kOtherWorld{
    Says::note, [](const ResumeQuestion& question) { return !same_world(question); },
    "random numbers were kept for {saved}: a rank without a file of its own starts others"};
constexpr ResumeRule kRankWithoutNumbers{
    .says = Says::note,
    .applies =
        [](const ResumeQuestion& question) {
          return same_world(question) && missing_random_numbers(question.catalog);
        },
    .tell =
        [](const ResumeQuestion& question) {
          return missing_random_numbers(question.catalog).value_or("") +
                 " is missing: its rank starts other random numbers";
        }};
constexpr ResumeRule kNoAdapterConfig{
    Says::no,
    [](const ResumeQuestion& question) {
      return is_adapter(question.catalog) && !lies_beside(question.catalog, kAdapterConfig);
    },
    "adapter_config.json is missing: the weights are an adapter's, and PEFT loads none without it"};
constexpr std::string_view kNoState =
    "trainer_state.json is missing, without which Trainer does not resume";

constexpr std::array kTrainer = {
    kOfTwoModels,
    ResumeRule{Says::no, lacks_state, kNoState},
    kNoAdapterConfig,
    kNoScheduler,
    ResumeRule{Says::yes, always,
               "the model and its optimizer lie here; each of {wanted} loads both whole"},
    kOtherWorld,
    kRankWithoutNumbers,
};
constexpr std::array kAccelerate = {
    kOfTwoModels,
    ResumeRule{Says::yes, always,
               "the model and its optimizer lie here; each of {wanted} loads both whole"},
    kOtherWorld,
    kRankWithoutNumbers,
};
// Its load_fsdp_optimizer asks DCP for what a new optimizer has, which in version 1 is no state.
constexpr ResumeRule kFirstVersion{
    Says::note,
    [](const ResumeQuestion& question) {
      return has_file(question.catalog, "optimizer_0/.metadata");
    },
    "a job of FSDP version 1 loads no states from optimizer_0/, without a word; one of version 2 "
    "does (fsdp_version: 2)"};

constexpr std::array kFsdp = {
    kOfTwoModels,
    ResumeRule{Says::no, lacks_state_of_trainers, kNoState},
    kNoScheduler,
    ResumeRule{Says::yes, always,
               "the model and its optimizer lie here; each of {wanted} reads, or is sent, its part "
               "of both"},
    kOtherWorld,
    kRankWithoutNumbers,
    kFirstVersion,
};
const std::array kLightning = {
    without_states_rule(),
    ResumeRule{Says::yes, always,
               "each of {wanted} reads its part of every tensor, and meta.pt whole"},
};
// OLMo-core, AutoModel, prime-rl.
const std::array kRuns = {
    without_states_rule(),
    ResumeRule{Says::yes, always, "each of {wanted} reads its part of every tensor"},
    ResumeRule{Says::note, [](const ResumeQuestion& question) { return !same_world(question); },
               "what each rank keeps for itself (random numbers, where the data was) is {saved}'s: "
               "one without a file takes rank 0's, or starts anew"},
};
constexpr std::array kNanochat = {
    ResumeRule{Says::no, [](const ResumeQuestion& question) { return !same_world(question); },
               "each of {saved} kept its part of the states, and none is for {wanted}"},
    ResumeRule{Says::yes, always, "each of {wanted} reads its own file of the states"},
};

}  // namespace

ResumeRules folder_resume(FolderKind kind) {
  constexpr ResumeRules kRules[] = {{"transformers' Trainer", kTrainer},
                                    {"accelerate's load_state", kAccelerate},
                                    {"a job with FSDP through accelerate", kFsdp},
                                    {"Lightning's FSDPStrategy", kLightning},
                                    {"OLMo-core's Trainer", kRuns},
                                    {"NeMo AutoModel", kRuns},
                                    {"prime-rl's trainer", kRuns},
                                    {"nanochat", kNanochat}};
  return kRules[static_cast<std::size_t>(kind)];
}

}  // namespace ebb::formats
