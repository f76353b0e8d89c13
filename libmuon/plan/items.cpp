#include "ebb/libmuon/plan/items.h"

#include <algorithm>

#include "ebb/libmuon/kernels/streamed.h"
#include "ebb/libmuon/plan/owners.h"

namespace ebb::libmuon {
namespace {

// Masters are whole in their tiles until the last strip is applied, and blocks of momentum lie in
// one strip.
bool comes_in_strips(const Columns& columns, const MuonSpec& spec, const Block& matrix) {
  return spec.out == Out::weights && !columns.bound_masters() &&
         matrix.cols % columns.block(TileKind::momentum) == 0;
}

Streaming streaming_of(const Items::From& from, std::uint32_t param, const FlatRange& whole) {
  const std::uint64_t above = from.stream_above;
  if (above == kNothingStreamed || whole.count * sizeof(float) <= above) return {};
  const MuonSpec& spec = muon_spec(from.model, param);
  for (const Block& matrix : blocks_of(spec, from.model.params[param].shape))
    if (matrix.first == whole.first && matrix.span() == whole.count && streams(spec, matrix) &&
        (matrix.rows() > matrix.cols || comes_in_strips(from.tiles.columns, spec, matrix)))
      return libmuon::streaming_of(StreamedMatrix::passes(spec), matrix, from.tiles.elems(),
                                   above / sizeof(float));
  return {};
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
bool decays_before(const ModelSpec& model, const Item& item) {
  return std::ranges::any_of(item.parts, [&](const ItemPart& part) {
    return muon_spec(model, part.param).decay == Decay::l2;
  });
}

}  // namespace

ItemPacker::Room TileSize::room() const {
  return {.elems = std::max(capacity(TileKind::momentum), capacity(TileKind::masters)),
          .block = columns.block(TileKind::momentum),
          .moments = capacity(TileKind::moments)};
}

Result<Items> Items::make(const From& from) {
  Items items(from.layouts);
  EBB_TRY(items.find_matrix_runs(from));
  if (from.layouts.placement() == Placement::shard) {
    items.add_shards(from);
    items.add_shard_moments(from);
  } else {
    items.add_matrices(from);
    items.add_moments(from);
  }
  items.add_adam_item(from);
  return items;
}

Result<> Items::find_matrix_runs(const From& from) {
  const ModelSpec& model = from.model;
  const auto number = [&] { return static_cast<std::uint32_t>(matrix_runs_.size()); };
  const std::uint64_t block = from.tiles.columns.block(TileKind::momentum);
  const std::uint64_t capacity = from.tiles.capacity(TileKind::moments);
  first_run_.reserve(model.params.size() + 1);
  matrix_runs_.reserve(model.params.size());  // most are one
  for (std::uint32_t param = 0; param < model.params.size(); ++param) {
    first_run_.push_back(number());
    if (!is_muon(model, param)) continue;
    const MuonSpec& spec = muon_spec(model, param);
    const Shape& shape = model.params[param].shape;
    std::uint64_t most = 0;
    for (const auto& [range, flops] : matrix_runs_of(model, param, block)) {
      matrix_runs_.push_back(
          {range, moments_of(spec, shape, range).count, streaming_of(from, param, range)});
      most = std::max(most, matrix_runs_.back().moments);
      if (from.layouts.computes(param, range.first)) flops_ += flops;
    }
    if (most > capacity)
      return Error{Code::unsupported,
                   compose("parameter {}: a matrix of {} second moments, where a tile holds {}",
                           model.params[param].name, most, capacity),
                   "give larger tiles"};
  }
  first_run_.push_back(number());
  return {};
}

void Items::add_matrices(const From& from) {
  ItemPacker packer(from.tiles.room());
  for (std::uint32_t param = 0; param < from.model.params.size(); ++param) {
    if (!is_muon(from.model, param)) continue;
    for (const ItemRange& whole : matrix_runs(param))
      if (from.layouts.computes(param, whole.range.first))
        packer.add(param, whole, out_of(from.model, param));
  }
  all_ = std::move(packer).items();
  for (const Item& item : all_) decays_.push_back(decays_before(from.model, item));
  order_.emplace(all_, from.update_bytes / sizeof(float), from.tiles.elems());
}

// In the order of the items that they belong to.
void Items::add_moments(const From& from) {
  Item all;
  for (const Item& item : all_) {
    const std::uint64_t first = all.elems;
    for (const ItemPart& part : item.parts)
      append_moments(from.model, {part.param, part.range}, all);
    moments_.push_back({first, all.elems - first});
  }
  add_moments_item(std::move(all));
}

// This rank's part of each bundle that it has some of.
void Items::add_shards(const From& from) {
  const ModelLayout& shards = from.layouts.shards();
  std::vector<std::size_t> bundles;  // by item
  shard_order_.emplace(ShardOrder::From{from.model, shards, from.layouts.matrices(),
                                        from.tiles.room(), from.update_bytes});
  for (std::size_t bundle = 0; bundle < shard_order_->bundles(); ++bundle) {
    Item item;
    for (const Transit& matrix : shard_order_->bundle(bundle)) {
      for (const FlatRange run : shards.runs(matrix, from.layouts.rank())) {
        item.parts.push_back({matrix.param, run, item.elems});
        item.elems += run.count;
      }
    }
    if (item.elems == 0) continue;
    decays_.push_back(decays_before(from.model, item));
    all_.push_back(std::move(item));
    bundles.push_back(bundle);
  }
  order_ = shard_order_->step_order(all_, bundles);
}

// Of the matrices that this rank computes, in the order of the model.
void Items::add_shard_moments(const From& from) {
  Item all;
  for (std::size_t bundle = 0; bundle < shard_order_->bundles(); ++bundle)
    for (const Transit& matrix : shard_order_->bundle(bundle)) {
      if (!from.layouts.computes(matrix.param, matrix.range.first)) continue;
      const std::uint64_t first = all.elems;
      append_moments(from.model, matrix, all);
      moments_.push_back({first, all.elems - first});
      moments_chunks_.push_back(static_cast<std::uint32_t>(shard_order_->chunk_of(bundle)));
    }
  add_moments_item(std::move(all));
}

void Items::add_moments_item(Item all) {
  if (all.elems > 0) all_.push_back(std::move(all));
}

void Items::add_adam_item(const From& from) {
  Item item;
  for (std::uint32_t param = 0; param < from.model.params.size(); ++param) {
    if (is_muon(from.model, param)) continue;
    for (const FlatRange range : from.layouts.own_ranges(param)) {
      item.parts.push_back({param, range, item.elems});
      item.elems += range.count;
    }
  }
  adam_elems_ = item.elems;
  if (item.elems > 0) all_.push_back(std::move(item));
}

}  // namespace ebb::libmuon
