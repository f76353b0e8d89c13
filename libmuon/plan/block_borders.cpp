#include "ebb/libmuon/plan/block_borders.h"

namespace ebb::libmuon {

Result<> check_block_borders(const ModelSpec& model, const Columns& columns,
                             const ModelLayout& shards) {
  const std::uint64_t block = columns.block(Visit::prepare);
  for (std::uint32_t i = 0; i < model.params.size(); ++i) {
    if (!is_muon(model, i) || block == 1) continue;
    const ModelLayout::Part part = shards.of(i);
    for (std::uint32_t shard = 0; shard < part.mesh().shard_world; ++shard) {
      const FlatRange held = part.held_by(shard);
      if (held.count == 0 || held.first % block == 0) continue;
      return Error{Code::layout,
                   compose("parameter {}: shard {} begins with element {}, inside a block of {} "
                           "that share a scale",
                           model.params[i].name, shard, held.first, block),
                   "keep momentum_buffer in fp32 or bf16, or its matrices at owners"};
    }
  }
  return {};
}

}  // namespace ebb::libmuon
