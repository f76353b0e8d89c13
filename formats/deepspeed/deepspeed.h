// DeepSpeed ZeRO checkpoints, stages 1 to 3: `latest`, `<tag>/`, one model file and one optimizer
// file a rank. Reads what DeepSpeed 0.14 to 0.19 write for data parallelism, Muon included. Which
// layouts exist and what is not read yet: docs/formats/deepspeed.md.
#pragma once

#include <memory>

#include "formats/catalog/catalog.h"
#include "formats/catalog/emit.h"
#include "formats/resume.h"

namespace formats {

bool detect_deepspeed(const SourceTree& tree);

// Reads the pickles of all ranks' files; elements only when asked for.
Result<std::unique_ptr<Checkpoint>> describe_deepspeed(std::shared_ptr<const SourceTree> tree);

ResumeRules deepspeed_resume();
// Files that DeepSpeed 0.19.8 loads on as many ranks as the layout has: policy zero3 is stage 3,
// zero12 is stage 2 (stage 1 where the content says so), zero12_boundary the same with Muon's
// matrices whole; any other is Code::usage. What else decides about them: `ds_config` in the
// values. Fails (Code::unsupported) where parameters of one buffer have different states.
Result<EmitPlan> emit_deepspeed(const EmitRequest& request);

}  // namespace formats
