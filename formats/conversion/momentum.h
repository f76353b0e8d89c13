// The convention of momentum buffers: told from groups and states, and changed. Internal to
// libswap/transfer. Sources: the optimizers' own code (KellerJordan/Muon, torch.optim.Muon,
// DeepSpeed, Megatron: EMA; Moonlight, dion, gram-newton-schulz: sum; torch.optim.SGD: by its
// dampening).
#pragma once

#include "ebb/formats/conversion/revision.h"

namespace ebb::libswap {

// Scales what is in the other form and notes the new one in the groups.
formats::Result<std::vector<std::string>> change_momentum(const MomentumRule& rule,
                                                          formats::Catalog& content,
                                                          std::vector<MadeOf>& made_of);

}  // namespace ebb::libswap
