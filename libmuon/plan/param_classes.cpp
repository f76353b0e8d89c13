#include "ebb/libmuon/plan/param_classes.h"

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace ebb::libmuon {
namespace {

using formats::Mesh;
using formats::Submesh;

constexpr std::uint64_t kMostRanks = std::uint64_t{1} << 20;  // of a mesh

Error usage(std::string message, std::string hint = {}) {
  return {Code::usage, std::move(message), std::move(hint)};
}

// PartitionSpec itself, whose name is empty, or one of its parts.
struct Partition {
  std::string name;
  Layout::Spec gradients, weights;  // of its first class; the others' meshes begin at other ranks
  std::vector<bool> spans;          // by axis: whether parameters are cut or copied along it
  std::uint32_t params = 0;         // so far
};

std::string text_of(const Partition& part) {
  return part.name.empty() ? "the partition of all ranks" : "partition " + part.name;
}

class Resolver {
 public:
  Resolver(const ModelSpec& model, const PartitionSpec& partition)
      : model_(model), partition_(partition), world_(world_of(partition)) {}

  Result<std::vector<ParamClass>> run() {
    EBB_TRY(check_axes());
    EBB_TRY(add_whole());
    for (const AxisPartition& part : partition_.parts) EBB_TRY(add_part(part));
    class_at(0, 0);
    for (std::uint32_t param = 0; param < model_.params.size(); ++param) EBB_TRY(add_param(param));
    for (const Partition& part : parts_) EBB_TRY(check_lists(part));
    for (std::size_t i = 0; i < classes_.size(); ++i) {
      classes_[i].shards = shards_of(classes_[i].gradients);
      if (!classes_[i].slices.empty()) fill_slices(classes_[i]);
      classes_[i].shapes = std::make_shared<const std::vector<Shape>>(std::move(shapes_[i]));
    }
    return std::move(classes_);
  }

 private:
  std::optional<std::size_t> axis_named(std::string_view name) const {
    const auto found = std::ranges::find(partition_.axes, name, &Axis::name);
    if (found == partition_.axes.end()) return std::nullopt;
    return static_cast<std::size_t>(found - partition_.axes.begin());
  }
  Result<std::size_t> axis_for(const std::string& what, std::string_view name) const {
    if (const auto axis = axis_named(name)) return *axis;
    return usage(compose("{} names axis {}, which is none of the world's: {}", what, name,
                         text_of(partition_.axes)));
  }

  Result<> check_axes() {
    strides_.resize(partition_.axes.size());
    std::uint64_t stride = 1;
    for (std::size_t i = partition_.axes.size(); i-- > 0;) {
      const Axis& axis = partition_.axes[i];
      if (axis.name.empty() || axis.size == 0)
        return usage(
            compose("axis {} of the world has no {}", i, axis.size == 0 ? "ranks" : "name"));
      if (axis_named(axis.name) != i)
        return usage(compose("two axes of the world are called {}", axis.name));
      strides_[i] = static_cast<std::uint32_t>(stride);
      stride = std::min(stride * axis.size, kMostRanks + 1);
    }
    if (stride > kMostRanks)
      return Error{Code::limit, compose("the axes {} make more ranks than the limit of {}",
                                        text_of(partition_.axes), kMostRanks)};
    return {};
  }

  Result<> add_whole() {
    Partition part{.name = {}, .gradients = partition_.gradients, .weights = partition_.weights};
    part.spans.resize(partition_.axes.size(), true);
    for (Layout::Spec* side : {&part.gradients, &part.weights}) {
      if (!partition_.axes.empty() && side->mesh == Mesh{}) side->mesh = {world_, 1};
      EBB_TRY(formats::check(side->mesh));
      if (side->split != 1)
        return usage("a trainer's shards are not split", "leave Layout::Spec::split out");
    }
    const Mesh &gradients = part.gradients.mesh, &weights = part.weights.mesh;
    if (gradients.world() != weights.world())
      return Error{Code::layout, compose("gradients are cut over {} ranks, weights over {}",
                                         gradients.world(), weights.world())};
    if (gradients.world() != world_)
      return Error{Code::layout,
                   compose("the axes {} make {} ranks, gradients and weights are cut over {}",
                           text_of(partition_.axes), world_, gradients.world()),
                   "leave their mesh out"};
    if (gradients.spread() != weights.spread())
      return Error{Code::layout, "gradients and weights lie on different ranks"};
    parts_.push_back(std::move(part));
    return {};
  }

  Result<> add_part(const AxisPartition& spec) {
    if (std::ranges::find(parts_, spec.name, &Partition::name) != parts_.end())
      return usage(compose("partition {} of the world has no name of its own: \"{}\"",
                           parts_.size(), spec.name));
    Partition part{.name = spec.name};
    const std::string what = text_of(part);
    EBB_TRY_ASSIGN(part.spans, lay(spec.gradients, what + ", gradients", part.gradients));
    EBB_TRY_ASSIGN(const auto weights, lay(spec.weights, what + ", weights", part.weights));
    for (std::size_t i = 0; i < weights.size(); ++i)
      if (part.spans[i] != weights[i])
        return Error{
            Code::layout,
            compose("{}: only its {} span axis {}; a parameter's gradient and weights must "
                    "lie on the same ranks",
                    what, weights[i] ? "weights" : "gradients", partition_.axes[i].name)};
    parts_.push_back(std::move(part));
    return {};
  }

  // Makes the mesh. Which axes it spans.
  Result<std::vector<bool>> lay(const AxisLayout& side, const std::string& what,
                                Layout::Spec& into) const {
    if (side.layout.split != 1)
      return usage(what + ": a trainer's shards are not split", "leave Layout::Spec::split out");
    if (side.layout.mesh != Mesh{})
      return usage(what + ": the mesh follows from the axes", "leave Layout::Spec::mesh out");
    std::vector<bool> spans(partition_.axes.size());
    const auto take = [&](const std::vector<std::string>& names,
                          std::vector<formats::MeshAxis>& axes) -> Result<> {
      for (const std::string& name : names) {
        EBB_TRY_ASSIGN(const std::size_t axis, axis_for(what, name));
        if (spans[axis])
          return usage(
              compose("{} names axis {} twice; an axis either cuts or copies, once", what, name));
        spans[axis] = true;
        axes.push_back({partition_.axes[axis].size, strides_[axis]});
      }
      return {};
    };
    Submesh within{.world = world_};
    EBB_TRY(take(side.shards, within.shards));
    EBB_TRY(take(side.copies, within.copies));
    into = side.layout;
    into.mesh = Mesh::part(std::move(within));
    return spans;
  }

  Result<> add_param(std::uint32_t number) {
    const ParamSpec& param = model_.params[number];
    const std::string what = "parameter " + param.name;
    const auto found = std::ranges::find(parts_, param.partition, &Partition::name);
    if (found == parts_.end())
      return usage(compose("{} names partition {}, which is none of PartitionSpec::parts", what,
                           param.partition));
    const std::uint32_t ordinal = found->params++;
    EBB_TRY_ASSIGN(const std::vector<std::size_t> cuts, cut_axes(what, param, *found));
    EBB_TRY_ASSIGN(const std::uint32_t first, first_rank(what, param, *found, cuts));
    std::uint32_t boxes = 1;
    for (const std::size_t axis : cuts) boxes *= partition_.axes[axis].size;
    for (std::uint32_t i = 0; i < boxes; ++i) {
      const Part part = part_of(param, cuts, i);
      const auto of = static_cast<std::uint32_t>(found - parts_.begin());
      const std::size_t at = class_at(of, first + part.ahead);
      ParamClass& one = classes_[at];
      const auto take_own = [&](const Layout::Spec& all, Layout::Spec& own) {
        if (ordinal < all.owners.size()) own.owners.push_back(all.owners[ordinal]);
        if (ordinal < all.rows.size()) own.rows.push_back(all.rows[ordinal]);
      };
      take_own(found->gradients, one.gradients);
      take_own(found->weights, one.weights);
      if (!cuts.empty()) EBB_TRY(add_slice(what, part.box, number, one));
      shapes_[at].push_back(part.box.extent);
      one.params.push_back(number);
    }
    return {};
  }

  struct Part {
    Box box;
    std::uint32_t ahead = 0;  // how many ranks behind the first box' its first one is
  };
  // One of the boxes that the axes cut a parameter into, one after the other, as torch.chunk()
  // does.
  Part part_of(const ParamSpec& param, std::span<const std::size_t> axes, std::uint32_t i) const {
    Part part{{Shape(param.shape.size()), param.shape}};
    for (std::size_t cut = 0; cut < axes.size(); ++cut) {
      const std::uint32_t size = partition_.axes[axes[cut]].size, place = i % size;
      i /= size;
      part.ahead += place * strides_[axes[cut]];
      std::uint64_t& extent = part.box.extent[param.cuts[cut].dimension];
      const std::uint64_t each = formats::div_ceil(extent, std::uint64_t{size});
      const std::uint64_t before = std::min(extent, place * each);
      part.box.offset[param.cuts[cut].dimension] += before;
      extent = std::min(extent - before, each);
    }
    return part;
  }

  // Parameters that are whole are slices, too, where others of their class are.
  Result<> add_slice(const std::string& what, const Box& box, std::uint32_t number,
                     ParamClass& one) const {
    const auto slice = Slice::of(box, model_.params[number].shape);
    if (!slice)
      return Error{Code::unsupported,
                   compose("{} of shape {} is cut in three dimensions behind one that is not", what,
                           formats::to_string(model_.params[number].shape)),
                   "cut two of them"};
    fill_slices(one);
    one.slices.push_back(*slice);
    return {};
  }
  void fill_slices(ParamClass& one) const {
    for (std::size_t i = one.slices.size(); i < one.params.size(); ++i)
      one.slices.push_back(Slice::run({0, formats::volume(model_.params[one.params[i]].shape)}));
  }

  // The axes that cut a parameter before its partition does, as ParamSpec::cuts names them.
  Result<std::vector<std::size_t>> cut_axes(const std::string& what, const ParamSpec& param,
                                            const Partition& part) const {
    std::vector<std::size_t> axes;
    for (const auto& [name, dimension] : param.cuts) {
      EBB_TRY_ASSIGN(const std::size_t axis, axis_for(what, name));
      if (part.spans[axis])
        return usage(
            compose("double sharding of {}: {} lays it over axis {}, and ParamSpec::cuts cuts "
                    "its dimension {} over the same",
                    what, text_of(part), name, dimension),
            "give it a partition that leaves the axis out, or no cut");
      if (std::ranges::find(axes, axis) != axes.end())
        return usage(compose("{} is cut twice over axis {}", what, name));
      if (dimension >= param.shape.size())
        return Error{Code::layout,
                     compose("{} of shape {} has no dimension {} that axis {} could cut", what,
                             formats::to_string(param.shape), dimension, name)};
      axes.push_back(axis);
    }
    return axes;
  }

  // The lowest of the ranks that hold the parameter.
  Result<std::uint32_t> first_rank(const std::string& what, const ParamSpec& param,
                                   const Partition& part, std::span<const std::size_t> cuts) const {
    std::vector<bool> known = part.spans;
    for (const std::size_t cut : cuts) known[cut] = true;
    std::uint32_t first = 0;
    for (const Coordinate& at : param.at) {
      EBB_TRY_ASSIGN(const std::size_t axis, axis_for(what, at.axis));
      const bool is_cut = std::ranges::find(cuts, axis) != cuts.end();
      if (known[axis])
        return usage(compose("{} names a place on axis {}, {}", what, at.axis,
                             part.spans[axis] ? "all of which is spanned by " + text_of(part)
                             : is_cut         ? std::string("which cuts it")
                                              : std::string("and another before")));
      const std::uint32_t size = partition_.axes[axis].size;
      if (at.index >= size)
        return usage(compose("{} is at {} on axis {}, which has places 0 to {}", what, at.index,
                             at.axis, size - 1));
      known[axis] = true;
      first += at.index * strides_[axis];
    }
    const auto unknown = std::ranges::find(known, false);
    if (unknown == known.end()) return first;
    return usage(compose("{} does not say where it is on axis {}, which {} does not span", what,
                         partition_.axes[static_cast<std::size_t>(unknown - known.begin())].name,
                         text_of(part)),
                 "ParamSpec::at takes its place");
  }

  // Its number.
  std::size_t class_at(std::uint32_t part, std::uint32_t first) {
    const auto [found, is_new] = by_place_.try_emplace({part, first}, classes_.size());
    if (is_new) {
      ParamClass& one = classes_.emplace_back(
          ParamClass{.partition = part,
                     .name = part == 0 ? std::string() : text_of(parts_[part]),
                     .gradients = parts_[part].gradients,
                     .weights = parts_[part].weights});
      for (Layout::Spec* side : {&one.gradients, &one.weights}) {
        side->mesh.within.first = first;
        side->owners.clear();
        side->rows.clear();
      }
      shapes_.emplace_back();
    }
    return found->second;
  }

  // One for each of the part's parameters.
  static Result<> check_lists(const Partition& part) {
    for (const Layout::Spec* side : {&part.gradients, &part.weights}) {
      const std::size_t wanted = side->policy == Policy::layer_wise ? part.params : 0;
      if (side->owners.size() != wanted)
        return Error{Code::layout, compose("{}: {}: {} owners given, {} wanted", text_of(part),
                                           name_of(side->policy), side->owners.size(), wanted)};
      const std::size_t rows = side->policy == Policy::uneven_rows ? part.params : 0;
      if (side->rows.size() != rows)
        return Error{Code::layout,
                     compose("{}: {}: rows of {} parameters given, {} wanted", text_of(part),
                             name_of(side->policy), side->rows.size(), rows)};
    }
    return {};
  }

  // As gradients; what has copies is cut among them, so that each has a part of what it holds.
  static Layout::Spec shards_of(const Layout::Spec& gradients) {
    if (gradients.policy == Policy::replicated)
      return {.policy = Policy::zero3, .mesh = gradients.mesh.spread()};
    Layout::Spec shards = gradients;
    shards.split = gradients.mesh.replicas;
    if (shards.split > 1) shards.mesh = gradients.mesh.spread_by_shard();
    return shards;
  }

  const ModelSpec& model_;
  const PartitionSpec& partition_;
  const std::uint32_t world_;
  std::vector<std::uint32_t> strides_;  // by axis
  std::vector<Partition> parts_;
  std::vector<ParamClass> classes_;
  std::vector<std::vector<Shape>> shapes_;  // by class, of what it has
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::size_t> by_place_;  // partition and rank
};

}  // namespace

Result<std::vector<ParamClass>> classes_of(const ModelSpec& model, const PartitionSpec& partition) {
  return Resolver(model, partition).run();
}

std::uint32_t world_of(const PartitionSpec& partition) {
  if (partition.axes.empty()) return partition.gradients.mesh.world();
  std::uint64_t ranks = 1;
  for (const Axis& axis : partition.axes) ranks = std::min(ranks * axis.size, kMostRanks + 1);
  return static_cast<std::uint32_t>(ranks);
}

std::string text_of(const std::vector<Axis>& axes) {
  std::string text;
  for (const Axis& axis : axes)
    text += compose("{}{} {}", text.empty() ? "" : " x ", axis.name, axis.size);
  return text.empty() ? "none" : text;
}

}  // namespace ebb::libmuon
