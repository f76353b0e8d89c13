// Faults that writers are known to have had, told by what they stored. Looks at a few thousand
// elements of a tensor, or at all of a few tensors.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ebb/formats/catalog/catalog.h"

namespace ebb::formats {

// One sentence each, with what was seen.
// - Master weights that are not the model's, beside others that are: `fully_reshardable` of
//   megatron-core 0.14 to 0.19 takes those behind the first bucket from shifted places, and fills
//   tails with zeros (NVIDIA/Megatron-LM pull 5077).
// - Every momentum of norm 1: torch.optim.Muon with bf16 gradients and nesterov=False normalises
//   the stored momentum instead of a copy of it (pytorch/pytorch issue 194664).
Result<std::vector<std::string>> known_writer_faults(const Checkpoint& checkpoint);

// The first of these alone; nullopt: it is not there. It is one of masters in the model's space.
Result<std::optional<std::string>> shifted_masters(const Checkpoint& checkpoint);
bool in_model_space(const TensorEntry& master);

}  // namespace ebb::formats
