// Source: deepspeed/runtime/engine.py and zero/stage3.py of 0.19.8, and runs of it:
// docs/formats/deepspeed.md.
#include <algorithm>
#include <array>

#include "formats/deepspeed/deepspeed.h"

namespace formats {
namespace {

bool other_world_stage3(const ResumeQuestion& question) {
  return !same_world(question) && question.catalog.partition.starts_with("zero3");
}

// State on NVMe, and some state that is not.
bool partly_swapped(const ResumeQuestion& question) {
  const auto& files = question.catalog.files;
  return std::any_of(files.begin(), files.end(), [](const FileEntry& file) {
    return file.name.find("offloaded_tensors/") != std::string::npos;
  });
}

bool momentum_kept_in_memory(const ResumeQuestion& question) {
  const Value* value = value_at(
      question.catalog, {"ds_config", "zero_optimization", "save_muon_momentum_buffer_in_memory"});
  return value != nullptr && value->kind == Value::Kind::boolean && value->integer != 0;
}

using Says = ResumeRule::Says;
constexpr std::array kRules = {
    ResumeRule{Says::no, other_world_stage3,
               "saved by {saved}, and DeepSpeed loads ZeRO state on as many ranks only",
               "deepspeed", "zero3"},
    ResumeRule{Says::no, [](const ResumeQuestion& question) { return !same_world(question); },
               "saved by {saved}, and DeepSpeed loads ZeRO state on as many ranks only",
               "deepspeed", "zero12"},
    ResumeRule{Says::no, partly_swapped,
               "a part of its state lies on NVMe: DeepSpeed then skips what the .pt files hold - "
               "step counters, loss scaler, sub-groups too small to be swapped - without a word",
               "deepspeed", "zero3"},
    ResumeRule{Says::yes, always, "saved by as many ranks", {}, {}},
    ResumeRule{Says::note,
               momentum_kept_in_memory,
               "save_muon_momentum_buffer_in_memory: DeepSpeed 0.19 steps on from zero momentum, "
               "not from the one saved; turn it off before resuming",
               {},
               {}},
};

}  // namespace

ResumeRules deepspeed_resume() { return {"DeepSpeed 0.19", kRules}; }

}  // namespace formats
