#include "ebb/libmuon/plan/state_plan.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "ebb/formats/core/digest.h"
#include "ebb/libmuon/plan/owners.h"

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
      Code::layout,
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

// Both in their own order, the others evenly between the first.
template <typename T>
std::vector<T> spread_between(const std::vector<T>& first, const std::vector<T>& others) {
  std::vector<T> all;
  all.reserve(first.size() + others.size());
  std::size_t next = 0;
  for (std::size_t i = 0; i < first.size(); ++i) {
    all.push_back(first[i]);
    const std::size_t due = (i + 1) * others.size() / first.size();
    for (; next < due; ++next) all.push_back(others[next]);
  }
  for (; next < others.size(); ++next) all.push_back(others[next]);
  return all;
}

// fp32 adds nothing: stores that knew nothing else have the same digest.
void add_dtypes(const ModelSpec& model, const Columns& columns, formats::Digest& digest) {
  for (const Visit visit : kVisits) {
    bool used = false;
    for (std::uint32_t i = 0; i < model.params.size(); ++i)
      used = used || has_visits(model, i, visit);
    for (const Column& column : columns.of(visit)) {
      if (!used || column.dtype == DType::f32) continue;
      digest.add(index_of(visit));
      digest.add(column.state);
      digest.add(static_cast<std::uint64_t>(column.dtype));
    }
  }
}

void add_layout(const Layout::Spec& spec, formats::Digest& digest) {
  digest.add(static_cast<std::uint64_t>(spec.policy));
  digest.add(spec.mesh.world());
  digest.add(spec.align_elems);
  for (const std::uint32_t owner : spec.owners) digest.add(owner);
  for (const auto& rows : spec.rows)
    for (const std::uint64_t some : rows) digest.add(some);
  if (spec.mesh.within.world == 0) return;
  digest.add(spec.mesh.within.first);
  for (const auto& axis : spec.mesh.within.shards)
    for (const std::uint32_t number : {axis.size, axis.stride}) digest.add(number);
}

// What a class beyond the first one adds was never in the digest of a world without axes.
std::uint64_t digest_of(const ModelSpec& model, const Layout& owners,
                        std::span<const ParamClass> classes, std::uint64_t tile_bytes,
                        const StatePlan& plan) {
  formats::Digest digest;
  for (std::uint32_t i = 0; i < model.params.size(); ++i) {
    digest.add(model.params[i].name);
    for (const std::uint64_t extent : model.params[i].shape) digest.add(extent);
    digest.add(is_muon(model, i) ? "muon" : "adamw");
  }
  add_layout(owners.spec(), digest);
  for (const ParamClass& one : classes) {
    add_layout(one.shards, digest);
    if (&one == &classes.front()) continue;
    for (const std::uint32_t param : one.params) digest.add(param);
    for (const Slice& slice : one.slices)
      for (const std::uint64_t number : {slice.first, slice.width}) digest.add(number);
  }
  digest.add(tile_bytes);
  add_dtypes(model, plan.columns(), digest);
  for (std::uint32_t param = 0; param < plan.params(); ++param) {
    if (plan.wholes(param).size() < 2) continue;
    digest.add(param);
    for (const StatePlan::Whole& whole : plan.wholes(param)) digest.add(whole.range.first);
  }
  for (const auto& [of, param, shape] : plan.derived()) {
    if (of != StatePlan::Derived::Of::moments) continue;
    digest.add("second moments");
    digest.add(param);
    for (const std::uint64_t extent : shape) digest.add(extent);
  }
  return digest.value();
}

}  // namespace

bool has_visits(const ModelSpec& model, std::uint32_t param, Visit visit) {
  if (visit == Visit::normalise)
    return is_muon(model, param) && muon_spec(model, param).second_moment != SecondMoment::none;
  return is_muon(model, param) == (visit != Visit::local);
}

Result<StatePlan> StatePlan::make(const ModelSpec& model, const PartitionSpec& partition,
                                  std::uint64_t tile_bytes, Rank rank, std::uint64_t update_bytes,
                                  const StateDTypes& dtypes) {
  if (partition.placement == Placement::shard)
    return Error{Code::unsupported, "placement of Muon state on shards is not built yet",
                 "use Placement::owner"};
  if (tile_bytes < 4096 || tile_bytes % 4096 != 0)
    return Error{Code::usage, compose("tile size {} is not a multiple of 4096 bytes", tile_bytes)};
  EBB_TRY_ASSIGN(Columns columns, Columns::make(dtypes));
  EBB_TRY(check_params(model));
  StatePlan plan(std::move(columns));
  plan.rank_ = rank;
  plan.tile_bytes_ = tile_bytes;
  plan.update_bytes_ = update_bytes;
  EBB_TRY_ASSIGN(const std::vector<ParamClass> classes, classes_of(model, partition));
  EBB_TRY_ASSIGN(plan.gradients_, ModelLayout::make(classes, &ParamClass::gradients));
  EBB_TRY_ASSIGN(plan.weights_, ModelLayout::make(classes, &ParamClass::weights));
  EBB_TRY_ASSIGN(plan.shards_, ModelLayout::make(classes, &ParamClass::shards));
  std::vector<DType> gradients, weights;
  for (const ParamSpec& param : model.params) {
    gradients.push_back(partition.hand_in == HandIn::added ? DType::f32 : param.gradient);
    weights.push_back(param.weight);
  }
  plan.gradients_->set_dtypes(std::move(gradients));
  if (partition.hand_in == HandIn::partial) plan.gradients_->set_in_parts();
  plan.weights_->set_dtypes(std::move(weights));
  EBB_TRY(plan.lay_matrices(model));
  for (std::uint32_t i = 0; i < model.params.size(); ++i) plan.muon_.push_back(is_muon(model, i));
  EBB_TRY(plan.find_wholes(model));
  plan.find_derived(model);
  plan.add_muon_items(model);
  plan.add_moments_item(model);
  plan.add_adam_item(model);
  plan.adam_line_.emplace(*plan.shards_, plan.muon_);
  plan.lay_tiles();
  plan.order_visits();
  plan.digest_ = digest_of(model, plan.owners(), classes, tile_bytes, plan);
  return plan;
}

std::uint64_t StatePlan::tile_elems() const {
  std::uint64_t most = 0;
  for (const Visit visit : kVisits) most = std::max(most, capacity(visit));
  return most;
}

ItemPacker::Room StatePlan::item_room() const {
  return {.elems = std::max(capacity(Visit::prepare), capacity(Visit::finish)),
          .block = columns_.block(Visit::prepare),
          .moments = capacity(Visit::normalise)};
}

Result<> StatePlan::lay_matrices(const ModelSpec& model) {
  Layout::Spec owners;
  owners.policy = Policy::layer_wise;
  owners.mesh.shard_world = gradients_->layouts().front().spec().mesh.world();
  const std::vector<OwnedRun> owned =
      choose_owners(model, {*gradients_, *weights_}, columns_.block(Visit::prepare));
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

StatePlan::OwnRun StatePlan::run_of(std::uint32_t param, std::uint64_t element) const {
  const ModelLayout::Part run = matrices_->run_of({param, {element, 1}});
  return {{run.slice.first, run.slice.elems}, Rank{run.layout.spec().owners[run.tensor]}};
}

std::vector<FlatRange> StatePlan::own_ranges(std::uint32_t param) const {
  return (muon_[param] ? *matrices_ : *shards_).runs(param, rank_);
}

bool StatePlan::here(std::uint32_t param) const {
  return gradients_->part_with(param, rank_).has_value();
}

bool StatePlan::in_place(std::uint32_t param, std::uint64_t element,
                         const ModelLayout& trainer) const {
  if (trainer.in_parts()) return false;
  if (muon_[param]) {
    const OwnRun run = run_of(param, element);
    return run.owner != rank_ || trainer.holds({param, run.range}, rank_);
  }
  const auto own = shards_->part_with(param, rank_), held = trainer.part_with(param, rank_);
  if (!own || !held) return true;
  const FlatRange kept = own->held(rank_);
  return formats::overlap(held->held(rank_), kept).count == kept.count;
}

Result<> StatePlan::find_wholes(const ModelSpec& model) {
  const std::uint64_t block = columns_.block(Visit::prepare);
  const auto number = [&] { return static_cast<std::uint32_t>(wholes_.size()); };
  first_whole_.reserve(muon_.size() + 1);
  for (std::uint32_t param = 0; param < muon_.size(); ++param) {
    first_whole_.push_back(number());
    if (!muon_[param]) continue;
    const MuonSpec& spec = muon_spec(model, param);
    const Shape& shape = model.params[param].shape;
    std::uint64_t most = 0;
    for (const auto& [range, flops] : libmuon::wholes_of(model, param, block)) {
      wholes_.push_back({range, libmuon::moments_of(spec, shape, range).count});
      most = std::max(most, wholes_.back().moments);
    }
    if (most > capacity(Visit::normalise))
      return Error{Code::unsupported,
                   compose("parameter {}: a matrix of {} second moments, where a tile holds {}",
                           model.params[param].name, most, capacity(Visit::normalise)),
                   "give larger tiles"};
  }
  first_whole_.push_back(number());
  return {};
}

void StatePlan::find_derived(const ModelSpec& model) {
  for (std::uint32_t param = 0; param < muon_.size(); ++param)
    if (has_visits(model, param, Visit::normalise))
      derived_.push_back({Derived::Of::moments, param,
                          moments_shape(muon_spec(model, param), model.params[param].shape)});
  const std::uint64_t block = columns_.block(Visit::prepare);
  for (std::uint32_t param = 0; param < muon_.size(); ++param)
    if (muon_[param] && block > 1)
      derived_.push_back({Derived::Of::scales, param, {formats::div_ceil(elems(param), block)}});
}

void StatePlan::add_muon_items(const ModelSpec& model) {
  const ItemPacker::Room room = item_room();
  ItemPacker packer(room);
  for (std::uint32_t param = 0; param < muon_.size(); ++param) {
    if (!muon_[param]) continue;
    const std::vector<libmuon::Whole> costs = libmuon::wholes_of(model, param, room.block);
    const std::span<const Whole> all = wholes(param);
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (run_of(param, all[i].range.first).owner != rank_) continue;
      packer.add(param, all[i].range, all[i].moments);
      flops_ += costs[i].flops;
    }
  }
  items_ = packer.items();
  for (const Item& item : items_)
    decays_.push_back(std::ranges::any_of(item.parts, [&](const ItemPart& part) {
      return muon_spec(model, part.param).decay == Decay::l2;
    }));
  order_.emplace(items_, update_bytes_ / sizeof(float));
}

// In the order of the items that they belong to.
void StatePlan::add_moments_item(const ModelSpec& model) {
  Item all;
  for (const Item& item : items_) {
    const std::uint64_t first = all.elems;
    for (const ItemPart& part : item.parts) {
      const FlatRange moments = libmuon::moments_of(muon_spec(model, part.param),
                                                    model.params[part.param].shape, part.range);
      if (moments.count == 0) continue;
      all.parts.push_back({part.param, moments, all.elems});
      all.elems += moments.count;
    }
    moments_.push_back({first, all.elems - first});
  }
  if (all.elems > 0) items_.push_back(std::move(all));
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

// Momentum tiles of an item, then its master tiles; behind all of them those of second moments;
// AdamW tiles spread evenly between.
void StatePlan::lay_tiles() {
  std::vector<TileEntry> muon_tiles, adam_tiles;
  const auto cut = [&](std::vector<TileEntry>& into, Visit visit, std::uint32_t number) {
    const Item& item = items_[number];
    const std::uint64_t most = capacity(visit);
    std::uint32_t part = 0;
    for (std::uint64_t first = 0; first < item.elems; first += most) {
      while (item.parts[part].item_first + item.parts[part].range.count <= first) ++part;
      into.push_back({visit, number, first, std::min(most, item.elems - first), part});
    }
  };
  for (std::uint32_t i = 0; i < order_->items(); ++i) {
    cut(muon_tiles, Visit::prepare, i);
    cut(muon_tiles, Visit::finish, i);
  }
  std::ranges::copy(moments_tiles(), std::back_inserter(muon_tiles));
  if (adam_elems_ > 0) cut(adam_tiles, Visit::local, static_cast<std::uint32_t>(items_.size()) - 1);
  tiles_ = spread_between(muon_tiles, adam_tiles);
}

// An item's lie in one.
std::vector<TileEntry> StatePlan::moments_tiles() const {
  const auto number = static_cast<std::uint32_t>(order_->items());
  std::vector<TileEntry> tiles;
  for (const FlatRange& own : moments_) {
    if (own.count == 0) continue;
    if (tiles.empty() || tiles.back().count + own.count > capacity(Visit::normalise))
      tiles.push_back({Visit::normalise, number, own.first, 0, 0});
    tiles.back().count += own.count;
  }
  return tiles;
}

std::vector<ScheduledVisit> StatePlan::visits_to(std::uint64_t tile) const {
  const TileEntry& entry = tiles_[tile];
  std::vector<ScheduledVisit> visits;
  if (entry.visit == Visit::finish && decays_[entry.item])
    visits.push_back({tile, entry.item, Visit::decay});
  if (entry.visit != Visit::normalise) visits.push_back({tile, entry.item, entry.visit});
  if (entry.visit == Visit::normalise)
    for (std::uint32_t item = 0; item < moments_.size(); ++item)
      if (formats::overlap(moments_[item], {entry.first, entry.count}).count > 0)
        visits.push_back({tile, item, Visit::normalise});
  return visits;
}

// By the share of its line that lies before a visit. Division rounds both lines alike, so of two
// shares the smaller never comes behind the larger; of equal ones AdamW's is first. What decays
// comes before the momentum that begins where it does, second moments before the masters.
void StatePlan::order_visits() {
  struct Placed {
    double share = 0;
    ScheduledVisit visit;
    auto key() const {
      const bool last = visit.visit == Visit::prepare || visit.visit == Visit::finish;
      return std::tuple(share, last, visit.tile);
    }
  };
  std::vector<Placed> adam, muon;
  for (std::uint64_t i = 0; i < tiles_.size(); ++i) {
    const bool is_adam = tiles_[i].visit == Visit::local;
    const std::uint64_t length = is_adam ? adam_line_->length() : order_->length();
    for (const ScheduledVisit& visit : visits_to(i))
      (is_adam ? adam : muon)
          .push_back({static_cast<double>(place(visit)) / static_cast<double>(length), visit});
  }
  std::ranges::sort(muon, {}, &Placed::key);
  std::ranges::sort(adam, {}, &Placed::key);
  std::vector<Placed> all;
  std::ranges::merge(adam, muon, std::back_inserter(all), {}, &Placed::share, &Placed::share);
  for (const Placed& one : all) schedule_.push_back(one.visit);
}

std::uint64_t StatePlan::place(const ScheduledVisit& visit) const {
  const std::uint64_t first = tiles_[visit.tile].first;
  switch (visit.visit) {
    case Visit::decay:
      return order_->momentum(visit.item);
    case Visit::prepare:
      return order_->momentum(visit.item) + first;
    case Visit::normalise:
      return order_->masters(visit.item);
    case Visit::finish:
      return order_->masters(visit.item) + first;
    case Visit::local:
      break;
  }
  return first;
}

FlatRange StatePlan::moments_of(const ModelSpec& model, const ScheduledVisit& visit,
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
