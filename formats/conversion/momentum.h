// The convention of momentum buffers: told from groups and states, changed by edits, compared by
// an engine that loads them. Sources: the optimizers' own code (KellerJordan/Muon,
// torch.optim.Muon, DeepSpeed, Megatron: EMA; Moonlight, dion, gram-newton-schulz: sum;
// torch.optim.SGD: by its dampening).
#pragma once

#include "ebb/formats/conversion/edits.h"

namespace ebb::formats {

// What a group calls the convention: "ema" or "sum". Ours; nobody else stores it.
inline constexpr std::string_view kMomentumConvention = "momentum_convention";

// The convention that a group's settings and the name of the state tell; nullopt: nothing does.
std::optional<MomentumForm> momentum_form(const GroupEntry& group, const TensorEntry& tensor);

// Scales what is in the other form and notes the new one in the groups.
Result<std::vector<std::string>> change_momentum(const MomentumRule& rule, Catalog& content,
                                                 std::vector<MadeOf>& made_of);

}  // namespace ebb::formats
