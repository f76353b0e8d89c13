#include "ebb/libmuon/plan/state_plan.h"

#include <algorithm>

#include "ebb/formats/native/manifest_limits.h"
#include "ebb/libmuon/kernels/streamed.h"
#include "ebb/libmuon/plan/block_borders.h"
#include "ebb/libmuon/plan/halves.h"
#include "ebb/libmuon/plan/owners.h"
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

// Those of matrices, if they have any.
void append_moments(const ModelSpec& model, const Transit& matrices, Item& all) {
  const FlatRange moments = moments_of(muon_spec(model, matrices.param),
                                       model.params[matrices.param].shape, matrices.range);
  if (moments.count == 0) return;
  all.parts.push_back({matrices.param, moments, all.elems});
  all.elems += moments.count;
}

// Whether some of it decays before its momentum.
bool decays(const ModelSpec& model, const Item& item) {
  return std::ranges::any_of(item.parts, [&](const ItemPart& part) {
    return muon_spec(model, part.param).decay == Decay::l2;
  });
}

}  // namespace

bool has_tiles(const ModelSpec& model, std::uint32_t param, TileKind kind) {
  if (kind == TileKind::highs) return true;
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
  EBB_TRY(check_halves(model, columns));
  StatePlan plan(std::move(columns));
  plan.rank_ = rank;
  plan.tile_bytes_ = tile_bytes;
  plan.update_bytes_ = update_bytes;
  plan.stream_above_ = stream_above;
  plan.placement_ = partition.placement;
  EBB_TRY_ASSIGN(const std::vector<ParamClass> classes, classes_of(model, partition));
  EBB_TRY(plan.lay_out(model, partition, classes));
  if (index_of(rank) >= plan.world())
    return Error{Code::usage, compose("rank {} in a world of {}", index_of(rank), plan.world())};
  if (plan.placement_ == Placement::shard)
    EBB_TRY(check_block_borders(model, plan.columns_, *plan.shards_));
  for (std::uint32_t i = 0; i < model.params.size(); ++i) {
    plan.muon_.push_back(is_muon(model, i));
    plan.outs_.push_back(out_of(model, i));
  }
  plan.choose_homes();
  EBB_TRY(plan.find_wholes(model));
  plan.find_derived(model);
  if (plan.placement_ == Placement::shard) {
    plan.add_shards(model);
    plan.add_lent_moments(model);
  } else {
    plan.add_matrices(model);
    plan.add_moments_item(model);
  }
  plan.add_adam_item(model);
  plan.adam_line_.emplace(*plan.shards_, plan.muon_);
  EBB_TRY(check_tiles(plan));
  plan.lay_tiles();
  if (plan.placement_ == Placement::shard)
    plan.order_turns();
  else
    plan.order_visits();
  plan.digest_ = digest_of(model, plan, classes);
  return plan;
}

Result<> StatePlan::lay_out(const ModelSpec& model, const PartitionSpec& partition,
                            std::span<const ParamClass> classes) {
  EBB_TRY_ASSIGN(gradients_, ModelLayout::make(classes, &ParamClass::gradients));
  EBB_TRY_ASSIGN(weights_, ModelLayout::make(classes, &ParamClass::weights));
  EBB_TRY_ASSIGN(shards_, ModelLayout::make(classes, &ParamClass::shards));
  std::vector<DType> gradients, weights;
  for (const ParamSpec& param : model.params) {
    gradients.push_back(partition.hand_in == HandIn::added ? DType::f32 : param.gradient);
    weights.push_back(param.weight);
  }
  gradients_->set_dtypes(std::move(gradients));
  if (partition.hand_in == HandIn::partial) gradients_->set_in_parts();
  weights_->set_dtypes(std::move(weights));
  return lay_matrices(model);
}

std::uint64_t StatePlan::tile_elems() const {
  std::uint64_t most = 0;
  for (const TileKind kind : kTileKinds) most = std::max(most, capacity(kind));
  return most;
}

ItemPacker::Room StatePlan::item_room() const {
  return {.elems = std::max(capacity(TileKind::momentum), capacity(TileKind::masters)),
          .block = columns_.block(TileKind::momentum),
          .moments = capacity(TileKind::moments)};
}

Result<> StatePlan::lay_matrices(const ModelSpec& model) {
  Layout::Spec owners;
  owners.policy = Policy::layer_wise;
  owners.mesh.shard_world = gradients_->layout(0).spec().mesh.world();
  const std::vector<OwnedRun> owned =
      choose_owners(model, {*gradients_, *weights_}, columns_.block(TileKind::momentum));
  std::vector<Shape> shapes;
  std::vector<Transit> runs;
  owners.owners.reserve(owned.size());
  shapes.reserve(owned.size());
  runs.reserve(owned.size());
  for (const OwnedRun& run : owned) {
    owners.owners.push_back(run.owner);
    shapes.push_back({run.range.count});
    runs.push_back({run.param, run.range});
  }
  EBB_TRY_ASSIGN(Layout matrices, Layout::make(std::move(owners), std::move(shapes)));
  matrices_.emplace(std::move(matrices), runs, model.params.size());
  return {};
}

void StatePlan::choose_homes() {
  std::vector<bool> on_shards;
  for (std::uint32_t param = 0; param < params(); ++param)
    on_shards.push_back(this->on_shards(param));
  state_ = ModelLayout::either(*matrices_, *shards_, on_shards);
}

StatePlan::OwnRun StatePlan::run_of(std::uint32_t param, std::uint64_t element) const {
  const ModelLayout::Part run = matrices_->run_of({param, {element, 1}});
  return {{run.slice.first, run.slice.elems}, Rank{run.layout.spec().owners[run.tensor]}};
}

std::vector<FlatRange> StatePlan::own_ranges(std::uint32_t param) const {
  return state_->runs(param, rank_);
}

bool StatePlan::here(std::uint32_t param) const {
  return gradients_->part_with(param, rank_).has_value();
}

bool StatePlan::in_place(std::uint32_t param, std::uint64_t element,
                         const ModelLayout& trainer) const {
  if (trainer.in_parts()) return false;
  if (!on_shards(param)) {
    const OwnRun run = run_of(param, element);
    return run.owner != rank_ || trainer.holds({param, run.range}, rank_);
  }
  const auto own = shards_->part_with(param, rank_), held = trainer.part_with(param, rank_);
  if (!own || !held) return true;
  const FlatRange kept = own->held(rank_);
  return formats::overlap(held->held(rank_), kept).count == kept.count;
}

Result<> StatePlan::find_wholes(const ModelSpec& model) {
  const std::uint64_t block = columns_.block(TileKind::momentum);
  const auto number = [&] { return static_cast<std::uint32_t>(wholes_.size()); };
  first_whole_.reserve(muon_.size() + 1);
  wholes_.reserve(muon_.size());  // most are one
  for (std::uint32_t param = 0; param < muon_.size(); ++param) {
    first_whole_.push_back(number());
    if (!muon_[param]) continue;
    const MuonSpec& spec = muon_spec(model, param);
    const Shape& shape = model.params[param].shape;
    std::uint64_t most = 0;
    for (const auto& [range, flops] : libmuon::wholes_of(model, param, block)) {
      wholes_.push_back({range, libmuon::moments_of(spec, shape, range).count,
                         streaming_of(model, param, range)});
      most = std::max(most, wholes_.back().moments);
      if (computes(param, range.first)) flops_ += flops;
    }
    if (most > capacity(TileKind::moments))
      return Error{Code::unsupported,
                   compose("parameter {}: a matrix of {} second moments, where a tile holds {}",
                           model.params[param].name, most, capacity(TileKind::moments)),
                   "give larger tiles"};
  }
  first_whole_.push_back(number());
  return {};
}

Streaming StatePlan::streaming_of(const ModelSpec& model, std::uint32_t param,
                                  const FlatRange& whole) const {
  if (stream_above_ == kNothingStreamed || whole.count * sizeof(float) <= stream_above_) return {};
  const MuonSpec& spec = muon_spec(model, param);
  for (const Block& matrix : blocks_of(spec, model.params[param].shape))
    if (matrix.first == whole.first && matrix.span() == whole.count && streams(spec, matrix) &&
        (matrix.rows() > matrix.cols || comes_in_strips(spec, matrix)))
      return libmuon::streaming_of(StreamedMatrix::passes(spec), matrix, item_tiles(),
                                   stream_above_ / sizeof(float));
  return {};
}

// Masters are whole in their tiles until the last strip is applied, and blocks of momentum lie in
// one strip.
bool StatePlan::comes_in_strips(const MuonSpec& spec, const Block& matrix) const {
  return spec.out == Out::weights && !columns_.in_halves() &&
         matrix.cols % columns_.block(TileKind::momentum) == 0;
}

void StatePlan::find_derived(const ModelSpec& model) {
  for (std::uint32_t param = 0; param < muon_.size(); ++param)
    if (has_tiles(model, param, TileKind::moments))
      derived_.push_back({Derived::Of::moments, param,
                          moments_shape(muon_spec(model, param), model.params[param].shape)});
  const std::uint64_t block = columns_.block(TileKind::momentum);
  for (std::uint32_t param = 0; param < muon_.size(); ++param)
    if (muon_[param] && block > 1)
      derived_.push_back({Derived::Of::scales, param, {formats::div_ceil(elems(param), block)}});
}

void StatePlan::add_matrices(const ModelSpec& model) {
  ItemPacker packer(item_room());
  for (std::uint32_t param = 0; param < muon_.size(); ++param) {
    if (!muon_[param]) continue;
    for (const ItemRange& whole : wholes(param))
      if (computes(param, whole.range.first)) packer.add(param, whole, out(param));
  }
  items_ = std::move(packer).items();
  for (const Item& item : items_) decays_.push_back(decays(model, item));
  order_.emplace(items_, update_bytes_ / sizeof(float), item_tiles());
}

// In the order of the items that they belong to.
void StatePlan::add_moments_item(const ModelSpec& model) {
  Item all;
  for (const Item& item : items_) {
    const std::uint64_t first = all.elems;
    for (const ItemPart& part : item.parts) append_moments(model, {part.param, part.range}, all);
    moments_.push_back({first, all.elems - first});
  }
  add_moments(std::move(all));
}

// Of the matrices that this rank computes, in the order of the model.
void StatePlan::add_lent_moments(const ModelSpec& model) {
  Item all;
  for (std::size_t bundle = 0; bundle < shard_order_->bundles(); ++bundle)
    for (const Transit& matrix : shard_order_->bundle(bundle)) {
      if (!computes(matrix.param, matrix.range.first)) continue;
      const std::uint64_t first = all.elems;
      append_moments(model, matrix, all);
      moments_.push_back({first, all.elems - first});
      lent_in_.push_back(shard_order_->chunk_of(bundle));
    }
  add_moments(std::move(all));
}

void StatePlan::add_moments(Item all) {
  moments_item_ = static_cast<std::uint32_t>(items_.size());
  if (all.elems > 0) items_.push_back(std::move(all));
}

// This rank's part of each bundle that it has some of.
void StatePlan::add_shards(const ModelSpec& model) {
  order_.emplace(items_, 0, item_tiles());  // no matrices
  const auto travelling = [&](DType (*dtype_of)(const MuonSpec&)) {
    std::vector<DType> dtypes(muon_.size(), DType::f32);
    for (std::uint32_t i = 0; i < muon_.size(); ++i)
      if (muon_[i]) dtypes[i] = dtype_of(muon_spec(model, i));
    ModelLayout layout = *shards_;
    layout.set_dtypes(std::move(dtypes));
    return layout;
  };
  updates_ = travelling(update_dtype);
  results_ = travelling(result_dtype);
  shard_order_.emplace(ShardOrder::From{model, *shards_, *matrices_, item_room(), update_bytes_});
  for (std::size_t bundle = 0; bundle < shard_order_->bundles(); ++bundle) {
    Item item;
    for (const Transit& matrix : shard_order_->bundle(bundle)) {
      for (const FlatRange run : shards_->runs(matrix, rank_)) {
        item.parts.push_back({matrix.param, run, item.elems});
        item.elems += run.count;
      }
    }
    if (item.elems == 0) continue;
    decays_.push_back(decays(model, item));
    items_.push_back(std::move(item));
    bundles_.push_back(bundle);
  }
}

void StatePlan::add_adam_item(const ModelSpec& model) {
  Item item;
  for (std::uint32_t param = 0; param < model.params.size(); ++param) {
    if (muon_[param]) continue;
    for (const FlatRange range : own_ranges(param)) {
      item.parts.push_back({param, range, item.elems});
      item.elems += range.count;
    }
  }
  adam_elems_ = item.elems;
  if (item.elems > 0) items_.push_back(std::move(item));
}

FlatRange StatePlan::moments_of(const ModelSpec& model, const Visit& visit,
                                const ItemBatch& batch) const {
  const FlatRange own =
      libmuon::moments_of(muon_spec(model, batch.param), model.params[batch.param].shape,
                          {batch.matrix.first, batch.count * batch.matrix.span()});
  if (own.count == 0) return {};
  const TileEntry& tile = tiles_[visit.tile];
  for (const ItemPart& part : items_[tile.item].parts)
    if (part.param == batch.param && formats::overlap(part.range, {own.first, 1}).count > 0)
      return {part.item_first + own.first - part.range.first - tile.first, own.count};
  EBB_CHECK(false);
}

double StatePlan::newton_schulz_flops() const { return flops_; }
std::uint64_t StatePlan::adam_elems() const { return adam_elems_; }

}  // namespace ebb::libmuon
