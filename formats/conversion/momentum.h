// The convention of momentum buffers: told from groups and states, changed by edits, compared by
// an engine that loads them. Sources: the optimizers' own code (KellerJordan/Muon,
// torch.optim.Muon, DeepSpeed, Megatron: EMA; Moonlight, dion, gram-newton-schulz: sum;
// torch.optim.SGD: by its dampening).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/conversion/content_view.h"

namespace ebb::formats {

// ema: M <- beta M + (1 - beta) G. sum: M <- beta M + G. From a start of zero and with a constant
// beta, sum is ema / (1 - beta).
enum class MomentumForm : std::uint8_t { ema, sum };
std::string_view name_of(MomentumForm form);

struct MomentumRule {
  MomentumForm to = MomentumForm::ema;
  std::optional<MomentumForm> from = std::nullopt;  // unset: as the groups and states tell
};

// What a group calls the convention: "ema" or "sum". Ours; nobody else stores it.
inline constexpr std::string_view kMomentumConvention = "momentum_convention";

// The convention that a group's settings and the name of the state tell; nullopt: nothing does.
std::optional<MomentumForm> momentum_form(const GroupEntry& group, const TensorEntry& tensor);

// Scales what is in the other form and notes the new one in the groups.
Result<std::vector<std::string>> change_momentum(const MomentumRule& rule, Catalog& content,
                                                 std::vector<MadeOf>& made_of);

}  // namespace ebb::formats
