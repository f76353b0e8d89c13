#include "ebb/libmuon/step/newton_schulz_need.h"

#include <algorithm>

#include "ebb/libmuon/kernels/kernels.h"
#include "ebb/libmuon/step/streamed_update.h"

namespace ebb::libmuon {

std::uint64_t newton_schulz_need(const ModelSpec& model, std::span<const Item> items,
                                 const Accelerator* accelerator) {
  std::uint64_t most = 0;
  for (const Item& item : items) {
    if (item.streaming) {
      most = std::max(most, StreamedUpdate::scratch_bytes(model, item));
      continue;
    }
    for (const ItemBatch& batch : batches_of(model, item)) {
      const MuonSpec& spec = muon_spec(model, batch.param);
      const std::uint64_t need =
          accelerator != nullptr
              ? accelerator->workspace_bytes(spec, batch.matrix, batch.count)
              : newton_schulz_scratch_bytes(spec, batch.matrix.rows(), batch.matrix.cols);
      most = std::max(most, need);
    }
  }
  return most;
}

Error not_finite(const ParamSpec& param, Rank rank) {
  return {Code::state,
          compose("parameter {}: what Newton-Schulz makes of it is not finite, on rank {}",
                  param.name, index_of(rank)),
          "open the store again: the last committed generation resumes; ckpt-inspect --stats "
          "shows whether its momentum is finite"};
}

}  // namespace ebb::libmuon
