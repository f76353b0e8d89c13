#include "ebb/formats/torch/sharded.h"

#include <algorithm>
#include <set>

#include "ebb/formats/core/compose.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/units.h"
#include "ebb/formats/layout/placements.h"

namespace ebb::formats {
namespace {

constexpr std::uint64_t kShardBytes = KiB;  // about what a shard takes, and a chunk made of it
constexpr std::string_view kDTensor = "DTensor";
constexpr std::string_view kShardedTensor = "ShardedTensor";

std::string_view class_word(std::string_view name) { return name.substr(name.rfind('.') + 1); }

std::string_view global_at(const PickleGraph& graph, std::span<const PickleId> args,
                           std::size_t at) {
  return at < args.size() && graph.is(args[at], PickleKind::global) ? graph.text(args[at])
                                                                    : std::string_view{};
}

bool is_wrapped(const PickleGraph& graph, PickleId id) {
  return graph.class_name(id).starts_with("torch._utils._rebuild_parameter");
}

std::span<const PickleId> items_at(const PickleGraph& graph, PickleId id) {
  const bool sequence =
      id != kNoPickle && (graph.is(id, PickleKind::tuple) || graph.is(id, PickleKind::list));
  return sequence ? graph.items(id) : std::span<const PickleId>{};
}

// (function, class, arguments, state): of a tensor class of torch.distributed without a storage.
std::span<const PickleId> wrapper_arguments(const PickleGraph& graph, PickleId id) {
  for (int depth = 0; depth < kMaxWrappers && graph.is(id, PickleKind::object); ++depth) {
    const std::span<const PickleId> args = graph.items(graph.args(id));
    if (is_wrapped(graph, id) && !args.empty()) {
      id = args[0];
      continue;
    }
    const bool wrapper = graph.class_name(id) == "torch._tensor._rebuild_from_type_v2" &&
                         args.size() == 4 &&
                         global_at(graph, args, 0) == "torch._utils._rebuild_wrapper_subclass";
    const std::string_view type = global_at(graph, args, 1);
    const std::string_view word = class_word(type);
    const bool of_torch = type.starts_with("torch.distributed.");
    return wrapper && of_torch && (word == kDTensor || word == kShardedTensor)
               ? args
               : std::span<const PickleId>{};
  }
  return {};
}

// Well formed or not, a later release may write it so.
UnreadForm unknown_form(const PickleGraph& graph, PickleId id) {
  UnreadForm form = unread_form(graph, id).value_or(UnreadForm{"a sharded tensor", ""});
  form.what += ", in a form that this version does not know";
  return form;
}

std::optional<std::int64_t> integer_of(const PickleGraph& graph, PickleId id) {
  if (id == kNoPickle || !graph.is(id, PickleKind::integer)) return std::nullopt;
  return graph.integer(id);
}

// An attribute, or, where a release gives them to the constructor, an argument.
std::optional<std::int64_t> number_of(const PickleGraph& graph, PickleId object,
                                      std::string_view name, std::size_t argument) {
  if (const auto number = integer_of(graph, attribute_of(graph, object, name))) return number;
  const std::span<const PickleId> args = items_at(graph, graph.args(object));
  return argument < args.size() ? integer_of(graph, args[argument]) : std::nullopt;
}

// nullopt: of a kind that is not read.
std::optional<Placement> placement_of(const PickleGraph& graph, PickleId id, std::size_t dims) {
  if (!graph.is(id, PickleKind::object)) return std::nullopt;
  const std::string_view word = class_word(graph.class_name(id));
  if (word == "Replicate") return Placement{};
  const bool strided = word == "_StridedShard";
  if (word != "Shard" && !strided) return std::nullopt;
  auto dim = number_of(graph, id, "dim", 0);
  if (dim && *dim < 0) *dim += static_cast<std::int64_t>(dims);
  const auto split = strided ? number_of(graph, id, "split_factor", 1) : 1;
  if (!dim || *dim < 0 || *dim > 64 || !split || *split < 1) return std::nullopt;
  return Placement{strided ? Placement::Kind::strided : Placement::Kind::shard,
                   static_cast<std::uint32_t>(*dim), static_cast<std::uint64_t>(*split)};
}

// The axes of the mesh in the order in which they cut: their own, or, for each dimension of the
// tensor, the one of shard_order. nullopt: it names other axes.
std::optional<std::vector<std::size_t>> cutting_order(const PickleGraph& graph, PickleId spec,
                                                      std::size_t axes) {
  std::vector<std::size_t> order;
  std::set<std::size_t> seen;
  for (const PickleId entry : items_at(graph, attribute_of(graph, spec, "shard_order"))) {
    std::span<const PickleId> parts = items_at(graph, entry);  // (dimension, axes)
    if (graph.is(entry, PickleKind::object)) parts = items_at(graph, graph.args(entry));
    Shape listed;
    if (parts.size() != 2 || !read_torch_shape(graph, parts[1], listed)) return std::nullopt;
    for (const std::uint64_t axis : listed) {
      if (axis >= axes || !seen.insert(axis).second) return std::nullopt;
      order.push_back(axis);
    }
  }
  for (std::size_t axis = 0; axis < axes; ++axis)
    if (!seen.contains(axis)) order.push_back(axis);
  return order;
}

std::optional<Box> box_of(const PickleGraph& graph, PickleId metadata) {
  Box box;
  const PickleId offsets = attribute_of(graph, metadata, "shard_offsets");
  const PickleId sizes = attribute_of(graph, metadata, "shard_sizes");
  if (offsets == kNoPickle || sizes == kNoPickle || !read_torch_shape(graph, offsets, box.offset) ||
      !read_torch_shape(graph, sizes, box.extent) || box.offset.size() != box.extent.size())
    return std::nullopt;
  return box;
}

std::optional<std::uint32_t> rank_of(const PickleGraph& graph, PickleId object,
                                     std::string_view name) {
  const auto rank = integer_of(graph, attribute_of(graph, object, name));
  return rank && *rank >= 0 && *rank < kMostRanks ? std::optional(static_cast<std::uint32_t>(*rank))
                                                  : std::nullopt;
}

}  // namespace

// What all of them have: class, dtype, size and more to make a tensor of, and what that keeps.
struct ShardedReader::Wrapper {
  PickleId id = kNoPickle;
  DType dtype = DType::f32;
  Shape shape;
  PickleId state = kNoPickle;
};

bool is_sharded_tensor(const PickleGraph& graph, PickleId id) {
  return !wrapper_arguments(graph, id).empty();
}

Error ShardedReader::bad(std::string_view why) const {
  return {Code::layout, compose("{}: {}", graph_.where(), why)};
}

Result<ShardedReader::Part> ShardedReader::part_of(PickleId id) {
  const std::span<const PickleId> args = wrapper_arguments(graph_, id);
  EBB_CHECK(!args.empty());
  const std::string_view kind = class_word(graph_.text(args[1]));
  const std::span<const PickleId> made_of = items_at(graph_, args[2]);
  const auto dtype = torch_dtype_named(global_at(graph_, made_of, 1));
  Wrapper wrapper{id, dtype.value_or(DType::f32), {}, args[3]};
  if (!dtype || made_of.size() < 3 || !read_torch_shape(graph_, made_of[2], wrapper.shape))
    return Part(unknown_form(graph_, id));
  const auto elems = checked_volume(wrapper.shape);
  if (!elems || !checked_mul(*elems, bytes_of(wrapper.dtype)))
    return bad(
        compose("a {} of shape {}, which does not fit 64 bits", kind, to_string(wrapper.shape)));
  return kind == kDTensor ? dtensor(wrapper) : sharded_tensor(wrapper);
}

Result<ShardedReader::Part> ShardedReader::dtensor(const Wrapper& wrapper) {
  const PickleId local = attribute_in(graph_, wrapper.state, "_local_tensor");
  const PickleId spec = attribute_in(graph_, wrapper.state, "_spec");
  if (local == kNoPickle || spec == kNoPickle || !is_torch_tensor(graph_, local))
    return Part(unknown_form(graph_, wrapper.id));
  EBB_TRY_ASSIGN(const MeshPlace* place, meshes_.place_at(attribute_of(graph_, spec, "mesh")));
  const std::span<const PickleId> placements =
      items_at(graph_, attribute_of(graph_, spec, "placements"));
  if (place == nullptr) return Part(unknown_form(graph_, wrapper.id));
  if (placements.size() != place->shape.size())
    return bad(
        compose("{} placements on a mesh of shape {}", placements.size(), to_string(place->shape)));
  const auto order = cutting_order(graph_, spec, placements.size());
  if (!order) return Part(unknown_form(graph_, wrapper.id));
  ShardedPart part{.kind = kDTensor,
                   .dtype = wrapper.dtype,
                   .shape = wrapper.shape,
                   .ranks = sorted(place->ranks),
                   .rank = place->rank,
                   .shards = {}};
  if (!place->coordinate) return Part(std::move(part));
  std::vector<PlacedAxis> axes;
  for (const std::size_t axis : *order) {
    const auto placement = placement_of(graph_, placements[axis], wrapper.shape.size());
    if (!placement)
      return Part(
          UnreadForm{compose("a DTensor placed as {}, of which no rank has the values",
                             graph_.is(placements[axis], PickleKind::object)
                                 ? printable(class_word(graph_.class_name(placements[axis])))
                                 : std::string("something unknown")),
                     "save its full_tensor()", wrapper.dtype, wrapper.shape});
    axes.push_back({place->shape[axis], (*place->coordinate)[axis], *placement});
  }
  auto placed = placed_part(wrapper.shape, axes);
  if (!placed) return std::move(placed).error().within(graph_.where());
  EBB_TRY_ASSIGN(std::optional<TorchComposite> made, composite_of(graph_, local));
  if (made) return made_of_parts(std::move(*made), *placed, std::move(part));
  if (auto form = unread_form(graph_, local)) return Part(std::move(*form));
  EBB_TRY_ASSIGN(const TorchTensor tensor, torch_tensor(graph_, local));
  const bool none = volume(placed->shape) == 0 && tensor.elems() == 0;
  if (!none && tensor.shape != placed->shape)
    return bad(
        compose("a DTensor of shape {} whose part has shape {}, where its mesh of {} and "
                "its placements make it {}",
                to_string(wrapper.shape), to_string(tensor.shape), to_string(place->shape),
                to_string(placed->shape)));
  if (!none && tensor.dtype != wrapper.dtype)
    return bad(
        compose("a DTensor of {} whose part is {}", name_of(wrapper.dtype), name_of(tensor.dtype)));
  EBB_TRY(graph_.charge(placed->boxes.size() * kShardBytes));
  for (PlacedBox& box : placed->boxes) {
    TorchTensor mine = tensor.part(box.at, box.box.extent);
    part.shards.push_back({std::move(box.box), std::move(mine)});
  }
  return Part(std::move(part));
}

// A quantized state of FSDP2's: the part is of a class that keeps other tensors.
Result<ShardedReader::Part> ShardedReader::made_of_parts(TorchComposite made,
                                                         const PlacedPart& placed,
                                                         ShardedPart part) {
  if (made.whole.shape != placed.shape || made.whole.dtype != part.dtype)
    return bad(compose("a DTensor of {} {} whose part is {} {} of {}", name_of(part.dtype),
                       to_string(part.shape), name_of(made.whole.dtype),
                       to_string(made.whole.shape), class_text(made.whole.type)));
  if (placed.boxes.size() != 1)
    return Part(
        UnreadForm{compose("a DTensor of {} whose rows lie apart", class_text(made.whole.type)),
                   "save it with torch.distributed.checkpoint.save", part.dtype, part.shape});
  part.shards.push_back({placed.boxes.front().box, {}, std::move(made)});
  return Part(std::move(part));
}

// (local shards, metadata, ranks of the group, how it was cut, ...)
Result<ShardedReader::Part> ShardedReader::sharded_tensor(const Wrapper& wrapper) {
  const std::span<const PickleId> state = items_at(graph_, wrapper.state);
  if (state.size() < 3) return Part(unknown_form(graph_, wrapper.id));
  const PickleId listed = attribute_of(graph_, state[1], "shards_metadata");
  ShardedPart part{.kind = kShardedTensor,
                   .dtype = wrapper.dtype,
                   .shape = wrapper.shape,
                   .ranks = {},
                   .rank = rank_of(graph_, state[2], "global_rank"),
                   .shards = {}};
  std::set<std::uint32_t> ranks;
  EBB_TRY(graph_.charge(items_at(graph_, listed).size() * sizeof(Box)));
  for (const PickleId metadata : items_at(graph_, listed)) {
    const auto box = box_of(graph_, metadata);
    if (!box) return Part(unknown_form(graph_, wrapper.id));
    if (!inside(*box, part.shape))
      return bad(compose("a ShardedTensor of shape {} with a shard {} outside of it",
                         to_string(part.shape), to_string(*box)));
    if (const auto rank = rank_of(graph_, attribute_of(graph_, metadata, "placement"), "_rank"))
      ranks.insert(*rank);
  }
  part.ranks = std::make_shared<const RankList>(ranks.begin(), ranks.end());
  const std::span<const PickleId> local = items_at(graph_, state[0]);
  for (const PickleId shard : local) {
    const PickleId tensor = attribute_of(graph_, shard, "tensor");
    if (tensor == kNoPickle || !is_torch_tensor(graph_, tensor) ||
        !box_of(graph_, attribute_of(graph_, shard, "metadata")))
      return Part(unknown_form(graph_, wrapper.id));
    if (auto form = unread_form(graph_, tensor)) return Part(std::move(*form));
  }
  EBB_TRY(add_local_shards(state[0], part));
  return Part(std::move(part));
}

Result<> ShardedReader::add_local_shards(PickleId list, ShardedPart& part) const {
  EBB_TRY(graph_.charge(items_at(graph_, list).size() * kShardBytes));
  for (const PickleId shard : items_at(graph_, list)) {
    Box box = *box_of(graph_, attribute_of(graph_, shard, "metadata"));
    EBB_TRY_ASSIGN(TorchTensor tensor, torch_tensor(graph_, attribute_of(graph_, shard, "tensor")));
    if (!inside(box, part.shape) || tensor.shape != box.extent || tensor.dtype != part.dtype)
      return bad(compose("a ShardedTensor of {} {} whose shard {} holds {} {}", name_of(part.dtype),
                         to_string(part.shape), to_string(box), name_of(tensor.dtype),
                         to_string(tensor.shape)));
    if (tensor.elems() > 0) part.shards.push_back({std::move(box), std::move(tensor)});
  }
  return {};
}

std::shared_ptr<const RankList> ShardedReader::sorted(
    const std::shared_ptr<const RankList>& ranks) {
  std::shared_ptr<const RankList>& known = in_order_[ranks.get()];
  if (known == nullptr) {
    RankList list = *ranks;
    std::ranges::sort(list);
    known = std::make_shared<const RankList>(std::move(list));
  }
  return known;
}

}  // namespace ebb::formats
