#include "ebb/libmuon/plan/block_borders.h"

#include <optional>

namespace ebb::libmuon {
namespace {

// Of what one shard of a parameter, or of a slice of it, has.
Result<> check_borders(const ParamSpec& param, const ModelLayout::Part& part, std::uint32_t shard,
                       std::uint64_t block) {
  std::optional<std::uint64_t> inside;
  part.slice.for_runs(part.held_by(shard), [&](FlatRange run) {
    if (run.first % block != 0 && !inside) inside = run.first;
  });
  if (!inside) return {};
  return Error{Code::layout,
               compose("parameter {}: shard {} begins with element {}, inside a block of {} that "
                       "share a scale",
                       param.name, shard, *inside, block),
               "keep momentum_buffer in fp32 or bf16, or its matrices at owners"};
}

}  // namespace

Result<> check_block_borders(const ModelSpec& model, const Columns& columns,
                             const ModelLayout& shards) {
  const std::uint64_t block = columns.block(TileKind::momentum);
  for (std::uint32_t i = 0; i < model.params.size(); ++i) {
    if (!is_muon(model, i) || block == 1) continue;
    for (std::size_t number = 0; number < shards.parts(i); ++number) {
      const ModelLayout::Part part = shards.part(i, number);
      for (std::uint32_t shard = 0; shard < part.mesh().shard_world; ++shard)
        EBB_TRY(check_borders(model.params[i], part, shard, block));
    }
  }
  return {};
}

}  // namespace ebb::libmuon
