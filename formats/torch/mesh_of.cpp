#include "ebb/formats/torch/mesh_of.h"

#include <algorithm>

#include "ebb/formats/core/compose.h"
#include "ebb/formats/torch/elements.h"
#include "ebb/formats/zip/inflate.h"

namespace ebb::formats {
namespace {

std::optional<std::uint32_t> rank_at(const PickleGraph& graph, PickleId id) {
  if (id == kNoPickle || !graph.is(id, PickleKind::integer)) return std::nullopt;
  const std::int64_t rank = graph.integer(id);
  if (rank < 0 || rank >= kMostRanks) return std::nullopt;
  return static_cast<std::uint32_t>(rank);
}

bool is_sequence(const PickleGraph& graph, PickleId id) {
  return id != kNoPickle && (graph.is(id, PickleKind::tuple) || graph.is(id, PickleKind::list));
}

// Numbers of nested tuples, one after the other. Depth is at most what a stream can nest.
bool add_numbers(const PickleGraph& graph, PickleId id, Shape& into) {
  if (const auto number = rank_at(graph, id)) return into.push_back(*number), true;
  Shape level;
  return is_sequence(graph, id) && read_torch_shape(graph, id, level) &&
         (into.insert(into.end(), level.begin(), level.end()), true);
}

// How far ranks of a layout are from the first in the map of ranks, row-major.
using Steps = std::vector<std::uint64_t>;

// Dimensions of a layout, some of which may be one axis of the mesh together.
struct MeshLayout {
  Shape sizes, strides;
  Shape axes;  // ranks of each axis

  // The items of nested tuples of `shape` and `stride`; false: they do not fit.
  bool add_axis(const PickleGraph& graph, PickleId shape, PickleId stride) {
    const std::size_t before = sizes.size();
    if (shape == kNoPickle || stride == kNoPickle || !add_numbers(graph, shape, sizes) ||
        !add_numbers(graph, stride, strides) || sizes.size() != strides.size())
      return false;
    const auto ranks = checked_volume(std::span(sizes).subspan(before));
    if (!ranks) return false;
    axes.push_back(*ranks);
    return true;
  }
  // nullopt: they are more than `most`, or none.
  std::optional<Steps> steps(std::uint64_t most) const {
    const auto ranks = checked_volume(sizes);
    if (!ranks || *ranks == 0 || *ranks > most) return std::nullopt;
    Steps steps{0};
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      Steps longer;
      longer.reserve(steps.size() * sizes[i]);
      for (const std::uint64_t step : steps)
        for (std::uint64_t c = 0; c < sizes[i]; ++c) longer.push_back(step + c * strides[i]);
      steps = std::move(longer);
    }
    return steps;
  }
};

// An axis each: _FlatLayouts in "axes", or the items of one shape and stride for all.
std::optional<MeshLayout> layout_at(const PickleGraph& graph, PickleId id) {
  MeshLayout layout;
  if (const PickleId listed = attribute_of(graph, id, "axes"); is_sequence(graph, listed)) {
    for (const PickleId axis : graph.items(listed))
      if (!layout.add_axis(graph, attribute_of(graph, axis, "shape"),
                           attribute_of(graph, axis, "stride")))
        return std::nullopt;
    return layout;
  }
  const PickleId shape = attribute_of(graph, id, "shape");
  const PickleId stride = attribute_of(graph, id, "stride");
  if (!is_sequence(graph, shape) || !is_sequence(graph, stride))
    return layout.add_axis(graph, shape, stride) ? std::optional(layout) : std::nullopt;
  const std::span<const PickleId> shapes = graph.items(shape);
  const std::span<const PickleId> strides = graph.items(stride);
  if (shapes.size() != strides.size()) return std::nullopt;
  for (std::size_t i = 0; i < shapes.size(); ++i)
    if (!layout.add_axis(graph, shapes[i], strides[i])) return std::nullopt;
  return layout;
}

Shape coordinate_of(const Shape& shape, std::uint64_t number) {
  Shape coordinate(shape.size());
  for (std::size_t i = shape.size(); i-- > 0;) {
    coordinate[i] = number % shape[i];
    number /= shape[i];
  }
  return coordinate;
}

}  // namespace

PickleId attribute_in(const PickleGraph& graph, PickleId state, std::string_view name) {
  if (state == kNoPickle) return kNoPickle;
  if (graph.is(state, PickleKind::dict)) return graph.find(state, name);
  if (!graph.is(state, PickleKind::tuple)) return kNoPickle;
  for (const PickleId part : graph.items(state))
    if (graph.is(part, PickleKind::dict))
      if (const PickleId found = graph.find(part, name); found != kNoPickle) return found;
  return kNoPickle;
}

PickleId attribute_of(const PickleGraph& graph, PickleId object, std::string_view name) {
  if (object == kNoPickle || !graph.is(object, PickleKind::object)) return kNoPickle;
  return attribute_in(graph, graph.state(object), name);
}

Error MeshReader::bad(std::string_view why) const {
  return {Code::layout, compose("{}: a device mesh {}", graph_.where(), why)};
}

Error MeshReader::too_many() const {
  return {Code::limit, compose("{}: a device mesh of more than {} ranks, which is the limit",
                               graph_.where(), kMostRanks)};
}

Result<const MeshPlace*> MeshReader::place_at(PickleId mesh) {
  auto known = known_.find(mesh);
  if (known == known_.end()) {
    EBB_TRY_ASSIGN(Places place, read(mesh));
    known = known_.emplace(mesh, std::move(place)).first;
  }
  return known->second ? &*known->second : nullptr;
}

Result<MeshReader::Places> MeshReader::read(PickleId mesh) const {
  const PickleId ranks = attribute_of(graph_, mesh, "mesh");
  if (ranks != kNoPickle && is_torch_tensor(graph_, ranks)) return of_tensor(mesh, ranks);
  const PickleId layout = attribute_of(graph_, mesh, "_layout");
  if (layout == kNoPickle) return Places();
  return of_layout(mesh, layout);
}

Result<MeshReader::Places> MeshReader::of_tensor(PickleId mesh, PickleId ranks) const {
  MeshPlace place;
  EBB_TRY_ASSIGN(auto list, ranks_in(ranks, place.shape));
  if (!list) return Places();
  place.ranks = std::make_shared<const RankList>(std::move(*list));
  return with_coordinate(mesh, std::move(place));
}

Result<MeshReader::Places> MeshReader::of_layout(PickleId mesh, PickleId id) const {
  const auto layout = layout_at(graph_, id);
  if (!layout) return Places();
  EBB_TRY_ASSIGN(const auto map, rank_map(mesh));
  if (!map) return Places();
  const auto steps = layout->steps(map->size());
  if (!steps) return bad("has a layout larger than its list of ranks");
  EBB_TRY(graph_.charge(steps->size() * (sizeof(std::uint64_t) + sizeof(std::uint32_t))));
  const auto first = first_of(mesh, *steps, layout->axes, *map);
  if (!first) return bad("says coordinates that lie outside of it");
  RankList ranks;
  for (const std::uint64_t step : *steps) {
    if (step >= map->size() - *first) return bad("has a layout larger than its list of ranks");
    ranks.push_back((*map)[*first + step]);
  }
  return with_coordinate(
      mesh, {layout->axes, std::make_shared<const RankList>(std::move(ranks)), {}, {}});
}

// Of a mesh that is a slice of another, the map has the other's ranks: where the slice begins in
// it, the rank that wrote it tells, and its place in the slice.
std::optional<std::uint64_t> MeshReader::first_of(PickleId mesh, const Steps& steps,
                                                  const Shape& shape, const RankList& map) const {
  std::optional<std::uint32_t> me = rank_at(graph_, attribute_of(graph_, mesh, "_rank"));
  if (!me) me = named_;
  const PickleId said = attribute_of(graph_, mesh, "_coordinate_on_dim");
  Shape coordinate;
  if (steps.size() == map.size() || !me || said == kNoPickle || !is_sequence(graph_, said) ||
      !read_torch_shape(graph_, said, coordinate) || coordinate.size() != shape.size())
    return 0;
  const auto found = std::ranges::find(map, *me);
  if (found == map.end()) return 0;
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (coordinate[i] >= shape[i]) return std::nullopt;
    number = number * shape[i] + coordinate[i];
  }
  const auto at = static_cast<std::uint64_t>(found - map.begin());
  return steps[number] <= at ? std::optional(at - steps[number]) : std::nullopt;
}

Result<MeshReader::Places> MeshReader::with_coordinate(PickleId mesh, MeshPlace place) const {
  const auto volume_there = checked_volume(place.shape);
  if (!volume_there || *volume_there != place.ranks->size())
    return bad("of another size than its list of ranks");
  place.rank = rank_at(graph_, attribute_of(graph_, mesh, "_rank"));
  const PickleId said = attribute_of(graph_, mesh, "_coordinate_on_dim");
  if (said == kNoPickle) {
    if (!place.rank) place.rank = named_;
    if (!place.rank) return Places();
    const auto found = std::ranges::find(*place.ranks, *place.rank);
    if (found != place.ranks->end())
      place.coordinate =
          coordinate_of(place.shape, static_cast<std::uint64_t>(found - place.ranks->begin()));
    return Places(std::move(place));
  }
  if (graph_.is(said, PickleKind::none)) return Places(std::move(place));
  Shape coordinate;
  if (!is_sequence(graph_, said) || !read_torch_shape(graph_, said, coordinate)) return Places();
  if (coordinate.size() != place.shape.size()) return bad("with coordinates of another dimension");
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < coordinate.size(); ++i) {
    if (coordinate[i] >= place.shape[i])
      return bad(compose("of shape {} says the coordinates {}", to_string(place.shape),
                         to_string(coordinate)));
    number = number * place.shape[i] + coordinate[i];
  }
  const std::uint32_t there = (*place.ranks)[number];
  if (place.rank && *place.rank != there)
    return bad(compose("has rank {} where rank {} says that it is", there, *place.rank));
  place.rank = there;
  place.coordinate = std::move(coordinate);
  return Places(std::move(place));
}

Result<std::optional<RankList>> MeshReader::rank_map(PickleId mesh) const {
  const PickleId flat = attribute_of(graph_, mesh, "_flatten_rank_map");
  if (is_sequence(graph_, flat)) {
    if (graph_.items(flat).size() > kMostRanks) return too_many();
    EBB_TRY(graph_.charge(graph_.items(flat).size() * sizeof(std::uint32_t)));
    RankList ranks;
    for (const PickleId item : graph_.items(flat)) {
      const auto rank = rank_at(graph_, item);
      if (!rank) return std::optional<RankList>();
      ranks.push_back(*rank);
    }
    return std::optional(std::move(ranks));
  }
  const PickleId tensor = attribute_of(graph_, mesh, "_rank_map");
  if (tensor == kNoPickle || !is_torch_tensor(graph_, tensor)) return std::optional<RankList>();
  Shape shape;
  return ranks_in(tensor, shape);
}

Result<std::optional<RankList>> MeshReader::ranks_in(PickleId id, Shape& shape) const {
  EBB_TRY_ASSIGN(const TorchTensor tensor, torch_tensor(graph_, id));
  if (tensor.elems() > kMostRanks) return too_many();
  EBB_TRY(graph_.charge(tensor.bytes()));
  if (tensor.dtype != DType::i32 && tensor.dtype != DType::i64) return std::optional<RankList>();
  EBB_TRY_ASSIGN(const StoredRecord record, file_.record_of(tensor));
  ByteVector bytes(tensor.bytes());
  if (record.entry.deflated)
    EBB_TRY(read_elements(InflateSource(source_, record.at, record.entry), 0, tensor, file_.order(),
                          0, bytes));
  else
    EBB_TRY(read_elements(*source_, record.at, tensor, file_.order(), 0, bytes));
  RankList ranks;
  const std::size_t width = bytes_of(tensor.dtype);
  for (std::size_t at = 0; at < bytes.size(); at += width) {
    const ByteView element = ByteView(bytes).subspan(at);
    const std::int64_t rank =
        width == 4 ? load_le<std::int32_t>(element) : load_le<std::int64_t>(element);
    if (rank < 0) return bad(compose("has the rank {}", rank));
    if (rank >= kMostRanks) return too_many();
    ranks.push_back(static_cast<std::uint32_t>(rank));
  }
  shape = tensor.shape;
  return std::optional(std::move(ranks));
}

}  // namespace ebb::formats
