// DeepSpeed checkpoints, stages 0 to 3: `latest`, `<tag>/`, one model file and one optimizer file a
// rank. Reads what DeepSpeed 0.14 to 0.19 write, Muon, pipelines, tensor and expert parallelism
// included. Which layouts exist and what is not read: docs/formats/deepspeed.md.
#pragma once

#include <memory>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/catalog/emit.h"
#include "ebb/formats/catalog/resume.h"

namespace ebb::formats {

bool detect_deepspeed(const SourceTree& tree);

// Reads the pickles of all ranks' files; elements only when asked for.
Result<std::unique_ptr<Checkpoint>> describe_deepspeed(std::shared_ptr<const SourceTree> tree);

ResumeRules deepspeed_resume();

// Stages 1 and 2: weights of the model that are not the rounded master weights. Reads both.
std::vector<Error> deepspeed_problems(const std::shared_ptr<const SourceTree>& tree,
                                      const Catalog& catalog);

// The partition of the stage that wrote the content; stage 3's where no DeepSpeed did.
Policy deepspeed_policy(const Catalog& content);

// The universal form: `latest_universal`, `<tag>/zero/<parameter>/{fp32,exp_avg,...}.pt` with whole
// tensors, any state under its own name, and the engine's own files beside them. A folder that
// holds rank files as well is taken for those.
bool detect_deepspeed_universal(const SourceTree& tree);
Result<std::unique_ptr<Checkpoint>> describe_deepspeed_universal(
    std::shared_ptr<const SourceTree> tree);
ResumeRules deepspeed_universal_resume();
// Files that `load_universal` of DeepSpeed 0.19.8 takes on any number of ranks and in any stage;
// the layout's partition does not matter. Fails like emit_deepspeed, and (Code::unsupported) for
// names that can be no folder.
Result<EmitPlan> emit_deepspeed_universal(const EmitRequest& request);

// Files that DeepSpeed 0.19.8 loads on as many ranks as the layout has: policy zero3 is stage 3,
// zero12 is stage 2 (stage 1 where the content says so), zero12_boundary the same with Muon's
// matrices whole; any other is Code::usage. What else decides about them: `ds_config` in the
// values. Fails (Code::unsupported) where parameters of one buffer have different states.
Result<EmitPlan> emit_deepspeed(const EmitRequest& request);

}  // namespace ebb::formats
