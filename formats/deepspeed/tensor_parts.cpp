#include "ebb/formats/deepspeed/tensor_parts.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/units.h"
#include "ebb/formats/deepspeed/config.h"

namespace ebb::formats::deepspeed {
namespace {

constexpr std::size_t kMaxChunks = std::size_t{1} << 22;  // of one tensor
constexpr std::int64_t kMaxExtent = std::int64_t{1} << 40;

Error no_way(std::string_view why) { return Error{Code::unsupported, std::string(why)}; }

Error unlike(std::string_view name, const std::vector<Shape>& parts, std::string_view why) {
  std::string shapes;
  for (std::size_t i = 0; i < parts.size() && i < 4; ++i)
    shapes += compose("{}{}", i == 0 ? "" : ", ", to_string(parts[i]));
  return Error{Code::layout,
               compose("parameter {}: tensor-parallel ranks have {}{}: {}", json_string(name),
                       shapes, parts.size() > 4 ? ", ..." : "", why)};
}

std::optional<std::uint64_t> extent_of(const Value& value) {
  if (value.kind != Value::Kind::integer || value.integer < 0 || value.integer > kMaxExtent)
    return std::nullopt;
  return static_cast<std::uint64_t>(value.integer);
}

bool has_items(const Value& value) {
  return value.kind == Value::Kind::list || value.kind == Value::Kind::tuple ||
         value.kind == Value::Kind::size;
}

std::optional<Shape> extents_of(const Value* value) {
  if (value == nullptr || !has_items(*value)) return std::nullopt;
  Shape shape;
  for (const Value& item : value->items) {
    const auto extent = extent_of(item);
    if (!extent) return std::nullopt;
    shape.push_back(*extent);
  }
  return shape;
}

// The box of this extent whose elements lie at `place`, [offset, [strides]], in a dense tensor.
std::optional<Box> box_at(const Shape& container, const Shape& extent, const Value* place) {
  if (place == nullptr || !has_items(*place) || place->items.size() != 2) return std::nullopt;
  const auto offset = extent_of(place->items[0]);
  const auto strides = extents_of(&place->items[1]);
  if (!offset || !strides || extent.size() != container.size() ||
      strides->size() != container.size())
    return std::nullopt;
  Box box{Shape(container.size(), 0), extent};
  std::uint64_t step = 1;
  for (std::size_t d = container.size(); d > 0; --d) {
    if (extent[d - 1] > 1 && (*strides)[d - 1] != step) return std::nullopt;
    if (container[d - 1] == 0) return std::nullopt;
    box.offset[d - 1] = *offset / step % container[d - 1];
    const auto next = checked_mul(step, container[d - 1]);
    if (!next) return std::nullopt;
    step = *next;
  }
  if (*offset >= step || !inside(box, container)) return std::nullopt;
  return box;
}

// Per sub-parameter, which lie one behind the other in a whole: how wide each rank's part of it is.
using Widths = std::vector<Shape>;

Result<WholeTensor> joined(std::string_view name, const std::vector<Shape>& parts, std::size_t dim,
                           const Widths& widths) {
  WholeTensor whole{.shape = parts.front(), .of_ranks = {}, .copies = {}};
  if (dim >= whole.shape.size()) return no_way("a tensor with too few dimensions to be cut");
  std::uint64_t total = 0;
  whole.of_ranks.resize(parts.size());
  std::vector<std::uint64_t> taken(parts.size(), 0);
  for (const Shape& of_ranks : widths)
    for (std::size_t rank = 0; rank < parts.size(); ++rank) {
      if (parts[rank].size() != whole.shape.size())
        return unlike(name, parts, "they differ in more than one dimension");
      PartPiece piece{formats::whole(parts[rank]), Shape(whole.shape.size(), 0)};
      piece.box.offset[dim] = std::exchange(taken[rank], taken[rank] + of_ranks[rank]);
      piece.box.extent[dim] = of_ranks[rank];
      piece.at[dim] = total;
      total += of_ranks[rank];
      if (!inside(piece.box, parts[rank]))
        return unlike(name, parts, "what is recorded of them is wider");
      whole.of_ranks[rank].push_back(std::move(piece));
    }
  whole.shape[dim] = total;
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    Shape same = parts[rank];
    if (taken[rank] != same[dim])
      return unlike(name, parts, "what is recorded of them is narrower");
    same[dim] = total;
    if (same != whole.shape) return unlike(name, parts, "they differ in more than one dimension");
  }
  if (!checked_volume(whole.shape)) return unlike(name, parts, "together they are no tensor");
  return whole;
}

Widths as_they_are(const std::vector<Shape>& parts, std::size_t dim) {
  Widths widths(1);
  for (const Shape& part : parts) widths[0].push_back(dim < part.size() ? part[dim] : 0);
  return widths;
}

WholeTensor of_copies(const std::vector<Shape>& parts) {
  WholeTensor whole{.shape = parts.front(), .of_ranks = {}, .copies = {}};
  whole.of_ranks.resize(parts.size());
  whole.of_ranks[0] = {{formats::whole(parts.front()), Shape(parts.front().size(), 0)}};
  for (std::size_t rank = 1; rank < parts.size(); ++rank) whole.copies.push_back(rank);
  return whole;
}

const Value* of_rank(const Value* ranks, std::size_t rank) {
  if (ranks == nullptr || ranks->kind != Value::Kind::dict) return nullptr;
  for (const auto& [key, value] : ranks->entries)
    if (key.kind == Value::Kind::integer && key.integer == static_cast<std::int64_t>(rank))
      return &value;
  return nullptr;
}

bool held_before(const Value* locations, std::size_t rank) {
  if (locations == nullptr || !has_items(*locations)) return false;
  return std::ranges::any_of(locations->items, [&](const Value& holder) {
    return holder.kind == Value::Kind::integer && holder.integer >= 0 &&
           holder.integer < static_cast<std::int64_t>(rank);
  });
}

}  // namespace

Result<TensorParts::List> TensorParts::list_of(const Value& info, std::string_view key) {
  List list;
  const Value* patterns = info.find(key);
  if (patterns == nullptr) return list;
  const auto add = [&](const Value& pattern, const Value* value) -> Result<> {
    if (pattern.kind != Value::Kind::string) return {};
    EBB_TRY_ASSIGN(NamePattern opened, NamePattern::open(pattern.text));
    list.push_back({std::move(opened), pattern.text, value});
    return {};
  };
  for (const Value& item : patterns->items) {
    const Value* own = item.kind == Value::Kind::dict ? item.find("patterns") : nullptr;
    if (own == nullptr) EBB_TRY(add(item, &item));
    if (own != nullptr)
      for (const Value& pattern : own->items) EBB_TRY(add(pattern, &item));
  }
  for (const auto& [pattern, value] : patterns->entries) EBB_TRY(add(pattern, &value));
  return list;
}

Result<TensorParts> TensorParts::open(const Value* info, std::uint32_t ranks) {
  if (info == nullptr || info->kind != Value::Kind::dict)
    return no_way("no universal_checkpoint_info");
  TensorParts parts;
  parts.info_ = info;
  parts.ranks_ = ranks;
  const Value* version = info->find("universal_checkpoint_version");
  parts.version_ = version == nullptr ? 0 : number_of(*version).value_or(0);
  const Value* map = info->find("affine_map");
  parts.by_autotp_ =
      map != nullptr || info->find("autotp_unsupported_parameter_patterns") != nullptr;
  const std::pair<List*, std::string_view> lists[] = {
      {&parts.unsupported_, "autotp_unsupported_parameter_patterns"},
      {&parts.copies_, "tp_replicated_parameter_patterns"},
      {&parts.averages_, "parameter_to_average_patterns"},
      {&parts.halves_, "parameter_with_2_sub_params_cat_dim_0"},
      {&parts.sub_params_, "parameter_with_sub_params"},
      {&parts.rows_, "parameter_with_row_parallelism_patterns"},
      {&parts.vocabulary_, "vocabulary_parameter_patterns"}};
  for (const auto& [list, key] : lists) {
    EBB_TRY_ASSIGN(*list, list_of(*info, key));
  }
  if (map == nullptr) return parts;
  const Value* map_version = map->find("version");
  if (map_version != nullptr && number_of(*map_version).value_or(2) > 1)
    return no_way("an affine_map of a version that this one does not know");
  EBB_TRY_ASSIGN(parts.maps_, list_of(*map, "params"));
  return parts;
}

const TensorParts::Known* TensorParts::find(const List& list, std::string_view name) {
  const auto known =
      std::ranges::find_if(list, [&](const Known& one) { return one.pattern.matches(name); });
  return known == list.end() ? nullptr : &*known;
}

Result<WholeTensor> TensorParts::whole_of(std::string_view name,
                                          const std::vector<Shape>& parts) const {
  EBB_TRY_ASSIGN(WholeTensor whole, merged(name, parts));
  const Value* rows = info_->find("original_vocab_size");
  const auto most = rows == nullptr ? std::nullopt : extent_of(*rows);
  if (most && !whole.shape.empty() && *most < whole.shape.front() &&
      find(vocabulary_, name) != nullptr)
    whole.left_out = std::exchange(whole.shape.front(), *most) - *most;
  return whole;
}

// In the converter's own order.
Result<WholeTensor> TensorParts::merged(std::string_view name,
                                        const std::vector<Shape>& parts) const {
  if (const Known* why = find(unsupported_, name))
    return no_way("AutoTP itself says that it cannot be joined: " +
                  printable(why->value->text.empty() ? to_json(*why->value) : why->value->text));
  if (const Known* map = find(maps_, name)) return by_map(*map->value, parts);
  const bool copied = find(copies_, name) != nullptr;
  if (copied || find(averages_, name) != nullptr) {
    if (std::ranges::count(parts, parts.front()) != std::ssize(parts))
      return unlike(name, parts, "they should be copies");
    WholeTensor whole = of_copies(parts);
    if (!copied) whole.from = WholeTensor::From::the_mean;
    return whole;
  }
  if (find(halves_, name) != nullptr) {
    Widths widths(2);
    for (const Shape& part : parts) {
      const std::uint64_t all = part.empty() ? 0 : part.front();
      widths[0].push_back(div_ceil(all, std::uint64_t{2}));
      widths[1].push_back(all - widths[0].back());
    }
    return joined(name, parts, 0, widths);
  }
  if (const Known* known = find(sub_params_, name)) return by_sub_params(*known, name, parts);
  const std::size_t dim = find(rows_, name) != nullptr ? 1 : 0;
  return joined(name, parts, dim, as_they_are(parts, dim));
}

Result<WholeTensor> TensorParts::by_map(const Value& map, const std::vector<Shape>& parts) const {
  const auto shape = extents_of(map.find("logical_shape"));
  if (!shape || !checked_volume(*shape)) return no_way("its affine_map has no shape");
  WholeTensor whole{.shape = *shape, .of_ranks = {}, .copies = {}};
  whole.of_ranks.resize(parts.size());
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    const Value* mine = of_rank(map.find("ranks"), rank);
    const auto held = extents_of(mine == nullptr ? nullptr : mine->find("shard_shape"));
    const Value* pieces = mine == nullptr ? nullptr : mine->find("pieces");
    if (!held || *held != parts[rank] || pieces == nullptr)
      return no_way("its affine_map is of parts with other shapes");
    for (const Value& piece : pieces->items) {
      const auto extent = extents_of(piece.find("shape"));
      if (!extent) return no_way("its affine_map has a piece without a shape");
      const Value* scale = piece.find("scale");
      if (scale != nullptr && number_of(*scale).value_or(0) != 1)
        return no_way("its parts are scaled, which no copying of elements undoes");
      if (checked_volume(*extent) == 0) continue;
      const auto from = box_at(parts[rank], *extent, piece.find("dest"));
      const auto to = box_at(*shape, *extent, piece.find("source"));
      if (!from || !to) return no_way("its parts are no boxes of the whole");
      if (!held_before(piece.find("locations"), rank))
        whole.of_ranks[rank].push_back({*from, to->offset});
    }
    if (whole.of_ranks[rank].empty() && parts[rank] == *shape) whole.copies.push_back(rank);
  }
  return whole;
}

// One view of the parameter, in which sub-parameters lie one behind the other along a dimension.
Result<WholeTensor> TensorParts::by_sub_params(const Known& known, std::string_view name,
                                               const std::vector<Shape>& parts) const {
  const Value* view = known.value->find("shape");
  const Value* along = known.value->find("partition_dim");
  const auto dim = along == nullptr ? std::nullopt : extent_of(*along);
  if (view == nullptr || !has_items(*view) || !dim || *dim >= view->items.size())
    return no_way("its sub-parameters are recorded in a form that is not read");
  if (view->items.size() != parts.front().size())
    return no_way("its sub-parameters are recorded of another view of it");
  const Value& of_dim = view->items[*dim];
  Widths widths;
  if (version_ >= 0.4) {
    const Value* all = info_->find("sub_param_shard_widths");
    const Value* mine = all == nullptr ? nullptr : all->find(known.text);
    if (mine != nullptr)
      for (const Value& sub : mine->items) widths.push_back(extents_of(&sub).value_or(Shape()));
  } else {
    std::uint64_t total = 0;
    for (const Shape& part : parts) total += *dim < part.size() ? part[*dim] : 0;
    Shape sizes = extents_of(&of_dim).value_or(Shape());
    if (const auto count = extent_of(of_dim); count && *count > 0 && *count <= total)
      sizes.assign(*count, total / *count);
    for (const std::uint64_t size : sizes)
      if (size % ranks_ == 0) widths.push_back(Shape(ranks_, size / ranks_));
    if (widths.size() != sizes.size()) widths.clear();
  }
  const bool all_ranks = std::ranges::all_of(
      widths, [&](const Shape& of_ranks) { return of_ranks.size() == parts.size(); });
  if (widths.empty() || !all_ranks)
    return no_way("how wide each rank's part of its sub-parameters is, is not recorded");
  return joined(name, parts, *dim, widths);
}

Result<> place_chunks(const TensorEntry& part, const std::vector<PartPiece>& pieces,
                      TensorEntry& whole) {
  const std::uint64_t width = bytes_of(part.dtype);
  for (const Chunk& chunk : part.chunks)
    for (const PartPiece& piece : pieces) {
      auto held = intersect(chunk.box, piece.box);
      if (!held) continue;
      Shape at = piece.at;
      bool left_out = false;
      for (std::size_t d = 0; d < at.size(); ++d) {
        at[d] += held->offset[d] - piece.box.offset[d];
        left_out = left_out || at[d] >= whole.shape[d];
        if (!left_out) held->extent[d] = std::min(held->extent[d], whole.shape[d] - at[d]);
      }
      if (left_out) continue;
      Box in_chunk = *held;
      for (std::size_t d = 0; d < at.size(); ++d) in_chunk.offset[d] -= chunk.box.offset[d];
      std::uint64_t done = 0;
      for_each_run(chunk.box.extent, in_chunk, [&](FlatRange run) {
        std::uint64_t first = run.first;
        for (Box& box : boxes_of(held->extent, {done, run.count})) {
          const std::uint64_t elems = volume(box.extent);
          for (std::size_t d = 0; d < at.size(); ++d) box.offset[d] += at[d];
          if (whole.chunks.size() <= kMaxChunks)
            whole.chunks.push_back({std::move(box), chunk.file, chunk.offset + first * width,
                                    elems * width, chunk.holder, chunk.tag});
          first += elems;
        }
        done += run.count;
      });
      if (whole.chunks.size() > kMaxChunks)
        return Error{Code::limit, compose("parameter {}: more than {} pieces of it lie apart",
                                          json_string(whole.name), kMaxChunks)};
    }
  return {};
}

}  // namespace ebb::formats::deepspeed
