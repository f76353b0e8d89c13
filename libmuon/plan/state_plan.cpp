#include "ebb/libmuon/plan/state_plan.h"

#include <algorithm>
#include <numeric>

#include "ebb/formats/core/digest.h"
#include "ebb/libmuon/plan/owners.h"

namespace ebb::libmuon {
namespace {

using formats::native::Segment;

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
  const auto fits = check_split(*spec, param.shape);
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

bool visits(const ModelSpec& model, std::uint32_t param, Visit visit) {
  return is_muon(model, param) == (visit != Visit::local);
}

// fp32 adds nothing: stores that knew nothing else have the same digest.
void add_dtypes(const ModelSpec& model, const Columns& columns, formats::Digest& digest) {
  for (const Visit visit : kVisits) {
    bool used = false;
    for (std::uint32_t i = 0; i < model.params.size(); ++i) used = used || visits(model, i, visit);
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
                        const Columns& columns,
                        const std::map<std::uint32_t, std::vector<FlatRange>>& wholes) {
  formats::Digest digest;
  for (std::uint32_t i = 0; i < model.params.size(); ++i) {
    digest.add(model.params[i].name);
    for (const std::uint64_t extent : model.params[i].shape) digest.add(extent);
    digest.add(is_muon(model, i) ? "muon" : "adamw");
    if (out_of(model.groups[model.params[i].group]) == Out::update) digest.add("no master");
  }
  add_layout(owners.spec(), digest);
  for (const ParamClass& one : classes) {
    add_layout(one.shards, digest);
    if (&one == &classes.front()) continue;
    for (const std::uint32_t param : one.params) digest.add(param);
  }
  digest.add(tile_bytes);
  add_dtypes(model, columns, digest);
  for (const auto& [param, ranges] : wholes) {  // none where every parameter is a matrix
    digest.add(param);
    for (const FlatRange& range : ranges) digest.add(range.first);
  }
  return digest.value();
}

}  // namespace

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
  std::vector<Shape> shapes;
  shapes.reserve(model.params.size());
  for (const ParamSpec& param : model.params) shapes.push_back(param.shape);

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
  Layout::Spec owners;
  owners.policy = Policy::layer_wise;
  owners.mesh.shard_world = classes.front().gradients.mesh.world();
  owners.owners = choose_owners(model, classes);
  EBB_TRY_ASSIGN(Layout matrices, Layout::make(std::move(owners), std::move(shapes)));
  plan.matrices_.emplace(std::move(matrices));
  for (std::uint32_t i = 0; i < model.params.size(); ++i) plan.muon_.push_back(is_muon(model, i));
  for (const ParamSpec& param : model.params)
    plan.outs_.push_back(out_of(model.groups[param.group]));
  plan.find_wholes(model);
  plan.add_muon_items(model);
  plan.add_adam_item(model);
  plan.adam_line_.emplace(*plan.shards_, plan.muon_);
  plan.lay_tiles();
  plan.order_visits();
  plan.place_hand_outs();
  plan.digest_ = digest_of(model, plan.owners(), classes, tile_bytes, plan.columns_, plan.wholes_);
  return plan;
}

std::uint64_t StatePlan::tile_elems() const {
  std::uint64_t most = 0;
  for (const Visit visit : kVisits) most = std::max(most, capacity(visit));
  return most;
}

std::uint64_t StatePlan::item_elems() const {
  return std::max(capacity(Visit::prepare), capacity(Visit::finish));
}

FlatRange StatePlan::own_range(std::uint32_t param) const {
  return (muon_[param] ? *matrices_ : *shards_).held(param, rank_);
}

bool StatePlan::here(std::uint32_t param) const {
  return gradients_->of(param).mesh().place_of(rank_).has_value();
}

bool StatePlan::in_place(std::uint32_t param, const ModelLayout& trainer) const {
  if (trainer.in_parts()) return false;
  const FlatRange own = own_range(param);
  const FlatRange held = trainer.held(param, rank_);
  return own.first >= held.first && own.first + own.count <= held.first + held.count;
}

void StatePlan::find_wholes(const ModelSpec& model) {
  for (std::uint32_t param = 0; param < muon_.size(); ++param) {
    if (!muon_[param]) continue;
    auto ranges = wholes_of(muon_spec(model, param), model.params[param].shape);
    if (ranges.size() > 1) wholes_.emplace(param, std::move(ranges));
  }
}

std::vector<FlatRange> StatePlan::wholes(std::uint32_t param) const {
  const auto found = wholes_.find(param);
  if (found != wholes_.end()) return found->second;
  return {{0, formats::volume(owners().tensors()[param])}};
}

void StatePlan::add_muon_items(const ModelSpec& model) {
  ItemPacker packer(item_elems());
  for (std::uint32_t param = 0; param < muon_.size(); ++param) {
    const FlatRange range = muon_[param] ? own_range(param) : FlatRange{};
    if (range.count == 0) continue;
    for (const FlatRange whole : wholes(param)) packer.add(param, whole, outs_[param]);
    flops_ += newton_schulz_flops_of(model, param);
  }
  items_ = packer.items();
  order_.emplace(items_, update_bytes_ / sizeof(float));
}

void StatePlan::add_adam_item(const ModelSpec& model) {
  Item item;
  for (std::uint32_t param = 0; param < model.params.size(); ++param) {
    const FlatRange range = muon_[param] ? FlatRange{} : own_range(param);
    if (range.count == 0) continue;
    item.parts.push_back({param, range, item.elems});
    item.elems += range.count;
  }
  adam_elems_ = item.elems;
  if (item.elems > 0) items_.push_back(std::move(item));
}

std::vector<TileEntry> StatePlan::cut(Visit visit, std::uint32_t number) const {
  std::vector<TileEntry> tiles;
  const Item& item = items_[number];
  const std::uint64_t most = capacity(visit);
  std::uint32_t part = 0;
  for (std::uint64_t first = 0; first < item.elems; first += most) {
    while (item.parts[part].item_first + item.parts[part].range.count <= first) ++part;
    tiles.push_back({visit, number, first, std::min(most, item.elems - first), part});
  }
  return tiles;
}

// Momentum tiles of an item, then its master tiles; AdamW tiles spread evenly between.
void StatePlan::lay_tiles() {
  std::vector<TileEntry> muon_tiles, adam_tiles;
  const auto add = [&](std::vector<TileEntry>& into, Visit visit, std::uint32_t number) {
    for (const TileEntry& tile : cut(visit, number)) into.push_back(tile);
  };
  for (std::uint32_t i = 0; i < items_.size(); ++i) {
    if (adam_elems_ > 0 && i + 1 == items_.size()) {
      add(adam_tiles, Visit::local, i);
    } else {
      add(muon_tiles, Visit::prepare, i);
      if (items_[i].out == Out::weights) add(muon_tiles, Visit::finish, i);
    }
  }
  tiles_ = spread_between(muon_tiles, adam_tiles);
}

// By the share of its line that lies before a tile. Division rounds both lines alike, so of two
// shares the smaller never comes behind the larger; of equal ones AdamW's is first.
void StatePlan::order_visits() {
  std::vector<std::pair<double, std::uint64_t>> adam, muon;  // with the share before it, which tile
  for (std::uint64_t i = 0; i < tiles_.size(); ++i) {
    const bool is_adam = tiles_[i].visit == Visit::local;
    const std::uint64_t length = is_adam ? adam_line_->length() : order_->length();
    (is_adam ? adam : muon)
        .emplace_back(static_cast<double>(place(tiles_[i])) / static_cast<double>(length), i);
  }
  std::ranges::sort(muon);
  std::ranges::sort(adam);
  std::vector<std::pair<double, std::uint64_t>> all;
  std::ranges::merge(adam, muon, std::back_inserter(all), {},
                     &std::pair<double, std::uint64_t>::first,
                     &std::pair<double, std::uint64_t>::first);
  for (const auto& [share, tile] : all) schedule_.push_back(tile);
}

void StatePlan::place_hand_outs() {
  std::vector<std::pair<std::uint64_t, std::size_t>> visits;  // of matrices: place, which visit
  for (std::size_t i = 0; i < schedule_.size(); ++i)
    if (const TileEntry& tile = tiles_[schedule_[i]]; tile.visit != Visit::local)
      visits.emplace_back(place(tile), i);
  for (std::uint32_t i = 0; i < order_->items(); ++i) {
    if (items_[i].out == Out::weights) continue;
    for (const TileEntry& part : cut(Visit::finish, i)) {
      const auto next = std::ranges::upper_bound(visits, std::pair(place(part), std::size_t{0}));
      hand_outs_.push_back({part, next == visits.end() ? schedule_.size() : next->second});
    }
  }
}

std::uint64_t StatePlan::place(const TileEntry& tile) const {
  if (tile.visit == Visit::local) return tile.first;
  const bool momentum = tile.visit == Visit::prepare;
  return (momentum ? order_->momentum(tile.item) : order_->masters(tile.item)) + tile.first;
}

std::vector<StatePlan::Span> StatePlan::spans(const TileEntry& tile) const {
  std::vector<Span> spans;
  for (const ItemPart& part :
       parts_of(items_[tile.item], {tile.first, tile.count}, tile.first_part))
    spans.push_back({part.param, part.range, part.item_first - tile.first});
  return spans;
}

std::vector<Segment> StatePlan::segments(const TileEntry& tile) const {
  std::vector<Segment> segments;
  const auto offsets = columns_.offsets(tile.visit, tile.count);
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    const Column& column = columns_.of(tile.visit)[i];
    for (const Span& span : spans(tile))
      segments.push_back({.param = span.param,
                          .state = column.state,
                          .dtype = column.dtype,
                          .first = span.range.first,
                          .count = span.range.count,
                          .offset = offsets[i] + span.tile_first * bytes_of(column.dtype)});
  }
  return segments;
}

std::uint64_t StatePlan::state_bytes() const {
  std::uint64_t bytes = 0;
  for (const TileEntry& tile : tiles_)
    for (const Column& column : columns_.of(tile.visit))
      bytes += tile.count * bytes_of(column.dtype);
  return bytes;
}

double StatePlan::newton_schulz_flops() const { return flops_; }
std::uint64_t StatePlan::adam_elems() const { return adam_elems_; }

}  // namespace ebb::libmuon
