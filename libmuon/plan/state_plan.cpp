#include "ebb/libmuon/plan/state_plan.h"

#include <algorithm>

#include "ebb/formats/native/manifest_limits.h"
#include "ebb/libmuon/plan/block_borders.h"
#include "ebb/libmuon/plan/bound_masters.h"
#include "ebb/libmuon/plan/param_classes.h"
#include "ebb/libmuon/plan/state_digest.h"

namespace ebb::libmuon {
namespace {

Result<> check_dtype(const std::string& param, std::string_view whose, DType dtype) {
  if (dtype == DType::f32 || dtype == DType::bf16) return {};
  return Error{Code::unsupported,
               compose("{}: its {} in {}", param, whose, formats::name_of(dtype)),
               "fp32 and bf16 are taken"};
}

Result<> check_matrix(const ParamSpec& param, const GroupSpec& group) {
  const auto* const spec = std::get_if<MuonSpec>(&group);
  if (spec == nullptr) return {};
  const std::string what = "parameter " + param.name;
  if (param.shape.size() < 2)
    return Error{
        Code::layout,
        what + " is in a Muon group but is no matrix: shape " + formats::to_string(param.shape),
        "put it into an AdamW group"};
  auto fits = check_split(*spec, param.shape);
  if (fits) fits = check_moments(*spec, param.shape);
  if (fits) return {};
  return Error{
      fits.error().code,
      compose("{}, shape {}: {}", what, formats::to_string(param.shape), fits.error().message),
      "give it a group whose split fits"};
}

Result<> check_params(const ModelSpec& model) {
  std::vector<std::string_view> names;
  for (const ParamSpec& param : model.params) {
    const std::string what = "parameter " + param.name;
    if (param.group >= model.groups.size())
      return Error{Code::usage,
                   compose("{} names group {} of {}", what, param.group, model.groups.size())};
    const auto elems = formats::checked_volume(param.shape);
    if (!elems || *elems == 0)
      return Error{Code::layout,
                   what + " has no elements: shape " + formats::to_string(param.shape)};
    EBB_TRY(check_matrix(param, model.groups[param.group]));
    EBB_TRY(check_dtype(what, "gradient", param.gradient));
    EBB_TRY(check_dtype(what, "weights", param.weight));
    names.push_back(param.name);
  }
  std::ranges::sort(names);
  const auto twice = std::ranges::adjacent_find(names);
  if (twice != names.end())
    return Error{Code::layout, compose("parameter {} is named twice", *twice)};
  return {};
}

// Before there are any.
Result<> check_tiles(const StatePlan& plan) {
  std::uint64_t tiles = 0;
  for (const Item& item : plan.items()) {
    const bool muon = plan.muon(item.parts.front().param);
    const std::uint64_t least =
        std::min(plan.capacity(TileKind::momentum), plan.capacity(TileKind::masters));
    tiles += muon ? 2 * formats::div_ceil(item.elems, least)
                  : formats::div_ceil(item.elems, plan.capacity(TileKind::adam));
  }
  return formats::native::check_tiles(tiles, plan.tile_bytes());
}

}  // namespace

bool has_tiles(const ModelSpec& model, std::uint32_t param, TileKind kind) {
  if (kind == TileKind::bound) return true;
  if (kind == TileKind::moments)
    return is_muon(model, param) && muon_spec(model, param).second_moment != SecondMoment::none;
  if (kind == TileKind::masters)
    return is_muon(model, param) && out_of(model, param) == Out::weights;
  return is_muon(model, param) == (kind != TileKind::adam);
}

Result<StatePlan> StatePlan::make(const ModelSpec& model, const PartitionSpec& partition,
                                  std::uint64_t tile_bytes, Rank rank, std::uint64_t update_bytes,
                                  const StateDTypes& dtypes, std::uint64_t stream_above) {
  EBB_TRY(formats::native::check_tile_bytes(tile_bytes));
  EBB_TRY_ASSIGN(Columns columns, Columns::make(dtypes));
  EBB_TRY(check_params(model));
  EBB_TRY(check_bound_masters(model, columns));
  EBB_TRY_ASSIGN(const std::vector<ParamClass> classes, classes_of(model, partition));
  EBB_TRY_ASSIGN(Layouts layouts,
                 Layouts::make(model, partition, classes, columns.block(TileKind::momentum), rank));
  if (partition.placement == Placement::shard)
    EBB_TRY(check_block_borders(model, columns, layouts.shards()));
  EBB_TRY_ASSIGN(Items items,
                 Items::make({model, layouts, {columns, tile_bytes}, update_bytes, stream_above}));
  StatePlan plan(std::move(columns), std::move(layouts), std::move(items));
  plan.tile_bytes_ = tile_bytes;
  plan.update_bytes_ = update_bytes;
  for (std::uint32_t param = 0; param < model.params.size(); ++param)
    plan.outs_.push_back(out_of(model, param));
  plan.find_derived(model);
  EBB_TRY(check_tiles(plan));
  plan.lay_tiles();
  plan.order_visits();
  plan.digest_ = digest_of(model, plan, classes);
  return plan;
}

std::uint64_t StatePlan::tile_elems() const {
  std::uint64_t most = 0;
  for (const TileKind kind : kTileKinds) most = std::max(most, capacity(kind));
  return most;
}

void StatePlan::find_derived(const ModelSpec& model) {
  for (std::uint32_t param = 0; param < params(); ++param)
    if (has_tiles(model, param, TileKind::moments))
      derived_.push_back({Derived::Of::moments, param,
                          moments_shape(muon_spec(model, param), model.params[param].shape)});
  const std::uint64_t block = columns_.block(TileKind::momentum);
  for (std::uint32_t param = 0; param < params(); ++param)
    if (muon(param) && block > 1)
      derived_.push_back({Derived::Of::scales, param, {formats::div_ceil(elems(param), block)}});
}

FlatRange StatePlan::moments_of(const ModelSpec& model, const Visit& visit,
                                const ItemBatch& batch) const {
  const FlatRange own =
      libmuon::moments_of(muon_spec(model, batch.param), model.params[batch.param].shape,
                          {batch.matrix.first, batch.count * batch.matrix.span()});
  if (own.count == 0) return {};
  const TileEntry& tile = tiles_[visit.tile];
  for (const ItemPart& part : items()[tile.item].parts)
    if (part.param == batch.param && formats::overlap(part.range, {own.first, 1}).count > 0)
      return {part.item_first + own.first - part.range.first - tile.first, own.count};
  EBB_CHECK(false);
}

}  // namespace ebb::libmuon
