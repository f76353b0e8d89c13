// DeepSpeed ZeRO checkpoints, stages 1 to 3: `latest`, `<tag>/`, one model file and one optimizer
// file a rank. Reads what DeepSpeed 0.14 to 0.19 write for data parallelism, Muon included. Which
// layouts exist and what is not read yet: docs/formats/deepspeed.md.
#pragma once

#include <memory>

#include "formats/catalog/catalog.h"
#include "formats/resume.h"

namespace formats {

bool detect_deepspeed(const SourceTree& tree);

// Reads the pickles of all ranks' files; elements only when asked for.
Result<std::unique_ptr<Checkpoint>> describe_deepspeed(std::shared_ptr<const SourceTree> tree);

ResumeRules deepspeed_resume();

}  // namespace formats
