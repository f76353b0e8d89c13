#include "ebb/libmuon/plan/state_digest.h"

#include "ebb/formats/core/digest.h"

namespace ebb::libmuon {
namespace {

// fp32 adds nothing: stores that knew nothing else have the same digest.
void add_dtypes(const ModelSpec& model, const Columns& columns, formats::Digest& digest) {
  if (columns.masters() == Masters::bound) digest.add("masters are bound");
  for (const TileKind kind : kTileKinds) {
    bool used = false;
    for (std::uint32_t i = 0; i < model.params.size(); ++i)
      used = used || has_tiles(model, i, kind);
    for (const Column& column : columns.of(kind)) {
      if (!used || column.dtype == DType::f32) continue;
      digest.add(index_of(kind));
      digest.add(column.state);
      digest.add(static_cast<std::uint64_t>(column.dtype));
    }
  }
}

void add_layout(const Layout::Spec& spec, formats::Digest& digest) {
  digest.add(static_cast<std::uint64_t>(spec.policy));
  digest.add(spec.mesh.world());
  digest.add(spec.align_elems);
  if (spec.split > 1) digest.add(compose("shards split in {}", spec.split));
  for (const std::uint32_t owner : spec.owners) digest.add(owner);
  for (const auto& rows : spec.rows)
    for (const std::uint64_t some : rows) digest.add(some);
  if (spec.mesh.within.world == 0) return;
  digest.add(spec.mesh.within.first);
  for (const auto& axis : spec.mesh.within.shards)
    for (const std::uint32_t number : {axis.size, axis.stride}) digest.add(number);
}

}  // namespace

// What a class beyond the first one adds was never in the digest of a world without axes.
// Who computes what of matrices whose state lies on shards is not in it.
std::uint64_t digest_of(const ModelSpec& model, const StatePlan& plan,
                        std::span<const ParamClass> classes) {
  formats::Digest digest;
  for (std::uint32_t i = 0; i < model.params.size(); ++i) {
    digest.add(model.params[i].name);
    for (const std::uint64_t extent : model.params[i].shape) digest.add(extent);
    digest.add(is_muon(model, i) ? "muon" : "adamw");
    if (out_of(model, i) == Out::update) digest.add("no master");
  }
  if (plan.placement() == Placement::owner)
    add_layout(plan.owners().spec(), digest);
  else
    digest.add("shards");
  for (const ParamClass& one : classes) {
    add_layout(one.shards, digest);
    if (&one == &classes.front()) continue;
    for (const std::uint32_t param : one.params) digest.add(param);
    for (const Slice& slice : one.slices)
      for (const std::uint64_t number : {slice.first, slice.width}) digest.add(number);
  }
  digest.add(plan.tile_bytes());
  add_dtypes(model, plan.columns(), digest);
  for (std::uint32_t param = 0; param < model.params.size(); ++param) {
    if (plan.matrix_runs(param).size() < 2) continue;
    digest.add(param);
    for (const ItemRange& whole : plan.matrix_runs(param)) digest.add(whole.range.first);
  }
  for (const auto& [of, param, shape] : plan.derived()) {
    if (of != StatePlan::Derived::Of::moments) continue;
    digest.add("second moments");
    digest.add(param);
    for (const std::uint64_t extent : shape) digest.add(extent);
  }
  return digest.value();
}

}  // namespace ebb::libmuon
