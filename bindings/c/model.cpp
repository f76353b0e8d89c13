#include "bindings/c/model.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "bindings/c/arguments.h"
#include "bindings/c/guarded.h"
#include "ebb/libmuon/spec/presets.h"
#include "ebb/libmuon/step/engine.h"

namespace ebb::c {
namespace {

using formats::Layout;
using formats::Policy;
using libmuon::AdamSpec;
using libmuon::EngineConfig;
using libmuon::GroupSpec;
using libmuon::MuonSpec;

template <typename T>
T or_else(T given, T usual) {
  return given == 0 ? usual : given;
}

// The k-th of a number's meanings, in order.
template <typename Enum>
Result<Enum> choice(int32_t number, std::initializer_list<Enum> all, std::string_view what) {
  if (number >= 0 && static_cast<std::size_t>(number) < all.size()) return all.begin()[number];
  return Error{Code::usage, compose("{} = {} is none of its values", what, number)};
}

Result<std::vector<std::string>> texts_of(const char* const* texts, uint32_t count,
                                          std::string_view what) {
  EBB_TRY_ASSIGN(const auto given, array_of(texts, count, what));
  std::vector<std::string> all;
  for (const char* const one : given) {
    EBB_TRY_ASSIGN(const std::string_view text, text_of(one, what));
    all.emplace_back(text);
  }
  return all;
}

// A rank of the world has one place in it: of `ranks` of them, where it is said how many.
Result<Layout::Spec> layout_of(const ebb_layout* given, uint32_t ranks, std::string_view what) {
  EBB_TRY_ASSIGN(const ebb_layout layout, sized(given, what));
  Layout::Spec spec;
  EBB_TRY_ASSIGN(spec.policy,
                 choice(layout.policy,
                        {Policy::replicated, Policy::zero12, Policy::zero12_boundary, Policy::zero3,
                         Policy::rows, Policy::layer_wise, Policy::uneven_rows},
                        compose("{}: policy", what)));
  spec.mesh.replicas = or_else(layout.replicas, 1u);
  spec.mesh.shard_world = or_else(layout.shard_world, std::max(1u, ranks / spec.mesh.replicas));
  if (uint64_t{spec.mesh.shard_world} * spec.mesh.replicas > std::numeric_limits<uint32_t>::max())
    return Error{Code::usage,
                 compose("{}: {} shards and {} copies are more ranks than there can be", what,
                         spec.mesh.shard_world, spec.mesh.replicas)};
  spec.align_elems = or_else<uint64_t>(layout.align_elems, 1);
  EBB_TRY_ASSIGN(const auto owners,
                 array_of(layout.owners, layout.owner_count, compose("{}: owners", what)));
  spec.owners.assign(owners.begin(), owners.end());
  EBB_TRY_ASSIGN(const auto rows,
                 array_of(layout.rows, layout.row_count, compose("{}: rows", what)));
  if (rows.size() % spec.mesh.shard_world != 0)
    return Error{Code::usage, compose("{}: {} rows are not {} for each parameter", what,
                                      rows.size(), spec.mesh.shard_world)};
  for (std::size_t at = 0; at < rows.size(); at += spec.mesh.shard_world)
    spec.rows.emplace_back(rows.begin() + static_cast<std::ptrdiff_t>(at),
                           rows.begin() + static_cast<std::ptrdiff_t>(at + spec.mesh.shard_world));
  return spec;
}

template <typename Spec>
Result<GroupSpec> with_settings(Spec spec, std::span<const ebb_setting> settings,
                                std::string_view what) {
  for (const ebb_setting& setting : settings) {
    EBB_TRY_ASSIGN(const std::string_view key, text_of(setting.key, compose("{}: a key", what)));
    EBB_TRY_ASSIGN(const std::string_view value,
                   text_of(setting.value, compose("{}: {}", what, key)));
    EBB_TRY_ASSIGN(spec, libmuon::with_setting(spec, key, value));
  }
  return GroupSpec(std::move(spec));
}

Result<GroupSpec> group_of(const ebb_group& group, std::string_view what) {
  EBB_TRY_ASSIGN(const auto settings,
                 array_of(group.settings, group.setting_count, compose("{}: settings", what)));
  EBB_TRY_ASSIGN(const std::string_view optimizer,
                 text_of(group.optimizer, compose("{}: optimizer", what)));
  if (optimizer == "adamw" && group.preset == nullptr)
    return with_settings(AdamSpec(), settings, what);
  if (optimizer != "muon")
    return Error{Code::usage,
                 compose("{}: optimizer \"{}\"{}", what, optimizer,
                         optimizer == "adamw" ? " has no presets" : ""),
                 "\"muon\", with a preset or without, or \"adamw\""};
  MuonSpec spec = MuonSpec::keller();
  if (group.preset != nullptr) {
    EBB_TRY_ASSIGN(spec, libmuon::preset(group.preset));
  }
  return with_settings(std::move(spec), settings, what);
}

Result<libmuon::ParamSpec> param_of(const ebb_param& param, std::string_view what) {
  libmuon::ParamSpec spec;
  EBB_TRY_ASSIGN(spec.name, text_of(param.name, compose("{}: name", what)));
  EBB_TRY_ASSIGN(const auto shape,
                 array_of(param.shape, param.ndim, compose("{}: shape", spec.name)));
  spec.shape = Shape(shape.begin(), shape.end());
  spec.group = param.group;
  EBB_TRY_ASSIGN(spec.gradient, dtype_of(param.gradient_dtype, spec.name + ": gradient_dtype"));
  EBB_TRY_ASSIGN(spec.weight, dtype_of(param.weight_dtype, spec.name + ": weight_dtype"));
  if (param.partition != nullptr) spec.partition = param.partition;
  EBB_TRY_ASSIGN(const auto places, array_of(param.at, param.at_count, spec.name + ": at"));
  for (const ebb_on_axis& place : places) {
    EBB_TRY_ASSIGN(const std::string_view axis, text_of(place.axis, spec.name + ": at: axis"));
    spec.at.push_back({std::string(axis), place.number});
  }
  EBB_TRY_ASSIGN(const auto cuts, array_of(param.cuts, param.cut_count, spec.name + ": cuts"));
  for (const ebb_on_axis& cut : cuts) {
    EBB_TRY_ASSIGN(const std::string_view axis, text_of(cut.axis, spec.name + ": cuts: axis"));
    spec.cuts.push_back({std::string(axis), cut.number});
  }
  return spec;
}

Result<libmuon::AxisPartition> partition_of(const ebb_partition& part, std::string_view what) {
  libmuon::AxisPartition partition;
  EBB_TRY_ASSIGN(partition.name, text_of(part.name, compose("{}: name", what)));
  EBB_TRY_ASSIGN(const auto shards,
                 texts_of(part.shards, part.shard_count, partition.name + ": shards"));
  EBB_TRY_ASSIGN(const auto copies,
                 texts_of(part.copies, part.copy_count, partition.name + ": copies"));
  EBB_TRY_ASSIGN(auto gradients, layout_of(part.gradients, 1, partition.name + ": gradients"));
  EBB_TRY_ASSIGN(auto weights, layout_of(part.weights, 1, partition.name + ": weights"));
  partition.gradients = {std::move(gradients), shards, copies};
  partition.weights = {std::move(weights), shards, copies};
  return partition;
}

Result<std::uint32_t> ranks_of_axes(std::span<const ebb_axis> axes) {
  uint64_t ranks = 1;
  for (const ebb_axis& axis : axes) {
    ranks *= axis.ranks;
    if (ranks == 0 || ranks > std::numeric_limits<uint32_t>::max())
      return Error{Code::usage, compose("the axes have {} ranks", ranks)};
  }
  return static_cast<std::uint32_t>(ranks);
}

Result<libmuon::PartitionSpec> cut_of(const ebb_model& model, uint32_t world) {
  using libmuon::HandIn;
  using libmuon::Placement;
  libmuon::PartitionSpec cut;
  EBB_TRY_ASSIGN(const auto axes, array_of(model.axes, model.axis_count, "the model's axes"));
  EBB_TRY_ASSIGN(const std::uint32_t ranks, ranks_of_axes(axes));
  if (!axes.empty()) world = ranks;
  for (const ebb_axis& axis : axes) {
    EBB_TRY_ASSIGN(const std::string_view name, text_of(axis.name, "an axis' name"));
    cut.axes.push_back({std::string(name), axis.ranks});
  }
  EBB_TRY_ASSIGN(cut.gradients, layout_of(model.gradients, world, "the model's gradients"));
  EBB_TRY_ASSIGN(cut.weights, layout_of(model.weights, world, "the model's weights"));
  EBB_TRY_ASSIGN(cut.placement, choice(model.placement, {Placement::owner, Placement::shard},
                                       "the model's placement"));
  EBB_TRY_ASSIGN(cut.hand_in,
                 choice(model.hand_in, {HandIn::reduced, HandIn::added, HandIn::partial},
                        "the model's hand_in"));
  EBB_TRY_ASSIGN(const auto parts, all_sized(model.partitions, model.partition_count,
                                             "the model's partitions", "partition"));
  for (const ebb_partition& part : parts) {
    EBB_TRY_ASSIGN(auto partition, partition_of(part, compose("partition {}", &part - &parts[0])));
    cut.parts.push_back(std::move(partition));
  }
  return cut;
}

Result<libmuon::StateDTypes> dtypes_of(std::span<const ebb_setting> given) {
  libmuon::StateDTypes dtypes;
  for (const ebb_setting& one : given) {
    EBB_TRY_ASSIGN(const std::string_view state, text_of(one.key, "the model's dtypes: a state"));
    EBB_TRY_ASSIGN(const std::string_view name, text_of(one.value, compose("dtypes: {}", state)));
    const auto dtype = formats::dtype_named(name);
    if (!dtype && name != "none")
      return Error{Code::usage, compose("dtypes: {} = \"{}\" is no dtype", state, name),
                   "F32, BF16, I8, U16 or none"};
    dtypes[std::string(state)] = dtype;
  }
  return dtypes;
}

Result<decltype(EngineConfig::tiers)> tiers_of(std::span<const ebb_setting> given, bool on_device) {
  using libswap::Tier;
  const std::map<std::string_view, Tier> known = {
      {"nvme", Tier::nvme}, {"host", Tier::host}, {"device", Tier::device}};
  decltype(EngineConfig::tiers) tiers;
  for (const ebb_setting& one : given) {
    EBB_TRY_ASSIGN(const std::string_view state, text_of(one.key, "the model's tiers: a state"));
    EBB_TRY_ASSIGN(const std::string_view name, text_of(one.value, compose("tiers: {}", state)));
    const auto found = known.find(name);
    if (found == known.end() || (found->second == Tier::device && !on_device))
      return Error{Code::usage, compose("tiers: {} = \"{}\"", state, name),
                   "nvme or host; device where the model has one"};
    tiers[std::string(state)] = found->second;
  }
  return tiers;
}

Result<libmuon::ModelSpec> parameters_of(const ebb_model& model) {
  libmuon::ModelSpec spec;
  EBB_TRY_ASSIGN(const auto groups,
                 all_sized(model.groups, model.group_count, "the model's groups", "group"));
  for (const ebb_group& group : groups) {
    EBB_TRY_ASSIGN(auto made, group_of(group, compose("group {}", &group - &groups[0])));
    spec.groups.push_back(std::move(made));
  }
  EBB_TRY_ASSIGN(const auto params,
                 all_sized(model.params, model.param_count, "the model's params", "parameter"));
  for (const ebb_param& param : params) {
    EBB_TRY_ASSIGN(auto made, param_of(param, compose("parameter {}", &param - &params[0])));
    spec.params.push_back(std::move(made));
  }
  return spec;
}

}  // namespace

Result<DType> dtype_of(int32_t number, std::string_view what) {
  if (number == 0) return DType::f32;
  const auto dtype = number > 0 && number < 256
                         ? formats::dtype_numbered(static_cast<std::uint8_t>(number))
                         : std::nullopt;
  if (dtype) return *dtype;
  return Error{Code::usage, compose("{} = {} is no dtype", what, number)};
}

namespace {

// What computes, and what lies on it.
Result<std::shared_ptr<OpenDevice>> device_of(const ebb_model& model, EngineConfig& config) {
  using libmuon::Side;
  EBB_TRY_ASSIGN(config.gradients_on, choice(model.gradients_on_device, {Side::host, Side::device},
                                             "the model's gradients_on_device"));
  EBB_TRY_ASSIGN(config.weights_on, choice(model.weights_on_device, {Side::host, Side::device},
                                           "the model's weights_on_device"));
  config.device_budget_bytes = or_else(model.device_budget_bytes, config.device_budget_bytes);
  if (model.device == nullptr) {
    if (config.gradients_on == Side::host && config.weights_on == Side::host &&
        model.device_budget_bytes == 0)
      return std::shared_ptr<OpenDevice>();
    return Error{Code::usage, "the model says what lies on a device, and has none",
                 "ebb_device_open() opens one"};
  }
  EBB_TRY_ASSIGN(const auto object, devices().find(model.device));
  config.accelerator = &object->opened->accelerator();
  return object->opened;
}

}  // namespace

Result<Described> described(const ebb_model* given, uint32_t world) {
  EBB_TRY_ASSIGN(const ebb_model model, sized(given, "the model"));
  Described result;
  EngineConfig& config = result.config;
  EBB_TRY_ASSIGN(result.device, device_of(model, config));
  EBB_TRY_ASSIGN(config.model, parameters_of(model));
  EBB_TRY_ASSIGN(config.partition, cut_of(model, world));
  EBB_TRY_ASSIGN(const auto dtypes,
                 array_of(model.dtypes, model.dtype_count, "the model's dtypes"));
  EBB_TRY_ASSIGN(config.dtypes, dtypes_of(dtypes));
  EBB_TRY_ASSIGN(const auto tiers, array_of(model.tiers, model.tier_count, "the model's tiers"));
  EBB_TRY_ASSIGN(config.tiers, tiers_of(tiers, result.device != nullptr));
  config.budget_bytes = model.budget_bytes;
  config.tile_bytes = or_else(model.tile_bytes, config.tile_bytes);
  config.chunk_bytes = or_else(model.chunk_bytes, config.chunk_bytes);
  config.early_gradient_bytes = model.early_gradient_bytes;
  config.stream_above_bytes = or_else(model.stream_above_bytes, config.stream_above_bytes);
  config.slots = or_else(model.slots, config.slots);
  config.threads = or_else(model.threads, config.threads);
  EBB_TRY_ASSIGN(
      config.dropped,
      choice(model.drop_unknown, {libmuon::DroppedState::refused, libmuon::DroppedState::allowed},
             "the model's drop_unknown"));
  return result;
}

namespace {

Result<Described> described_for(const ebb_model* model, uint32_t rank, uint32_t world) {
  EBB_TRY_ASSIGN(Described made, described(model, world));
  if (rank >= world) return Error{Code::usage, compose("rank {} in a world of {}", rank, world)};
  return made;
}

Result<> plan(const ebb_model* model, uint32_t rank, uint32_t world, ebb_plan* place) {
  using libmuon::Side;
  EBB_TRY_ASSIGN(const Described made, described_for(model, rank, world));
  // Ranks that are processes meet in the host's memory; alone, nothing travels.
  const Side wire = made.device != nullptr && world == 1 ? Side::device : Side::host;
  EBB_TRY_ASSIGN(const libmuon::EnginePlan plan,
                 libmuon::Engine::plan(made.config, Rank{rank}, wire));
  return answer(place,
                ebb_plan{0, plan.state_bytes, plan.memory_bytes, plan.ranks_bytes,
                         plan.least_budget_bytes, plan.disk_bytes, plan.streamed_matrices,
                         plan.step_read_bytes, plan.step_written_bytes, plan.step_sent_bytes,
                         plan.newton_schulz_flops, plan.device_bytes},
                "ebb_model_plan: plan");
}

// Makes one box of two that lie next to each other along one dimension, and are alike else.
bool join(formats::Box& box, const formats::Box& next) {
  std::optional<std::size_t> along;
  for (std::size_t i = 0; i < box.offset.size(); ++i) {
    if (box.offset[i] == next.offset[i] && box.extent[i] == next.extent[i]) continue;
    if (along || box.offset[i] + box.extent[i] != next.offset[i]) return false;
    along = i;
  }
  if (!along) return false;
  for (std::size_t i = 0; i < *along; ++i)
    if (box.extent[i] != 1) return false;  // else the elements would not be in this order
  box.extent[*along] += next.extent[*along];
  return true;
}

// Runs of a slice are boxes of one row each, those of a block of rows one behind the other.
std::vector<formats::Box> boxes_of(const Shape& shape, std::span<const FlatRange> runs) {
  std::vector<formats::Box> boxes;
  for (const FlatRange run : runs)
    for (formats::Box& box : formats::boxes_of(shape, run)) {
      boxes.push_back(std::move(box));
      while (boxes.size() > 1 && join(boxes[boxes.size() - 2], boxes.back())) boxes.pop_back();
    }
  return boxes;
}

struct Wanted {
  uint32_t rank = 0, world = 0;
  int32_t which = 0;
  uint32_t param = 0;
};

Result<> pieces(const ebb_model* model, const Wanted& wanted, uint64_t* offsets, uint64_t* extents,
                uint32_t* count) {
  EBB_TRY(check_place(count, "ebb_model_pieces: boxes"));
  EBB_TRY_ASSIGN(const Described made, described_for(model, wanted.rank, wanted.world));
  const EngineConfig& config = made.config;
  EBB_TRY_ASSIGN(
      const auto plan,
      libmuon::StatePlan::make(config.model, config.partition, config.tile_bytes, Rank{wanted.rank},
                               config.chunk_bytes, config.dtypes, config.stream_above_bytes));
  if (wanted.param >= plan.params())
    return Error{Code::usage, compose("parameter {} of {}", wanted.param, plan.params())};
  EBB_TRY_ASSIGN(const bool of_weights,
                 choice(wanted.which, {false, true}, "ebb_model_pieces: which"));
  const Shape& shape = config.model.params[wanted.param].shape;
  const auto boxes = boxes_of(
      shape,
      (of_weights ? plan.weights() : plan.gradients()).runs(wanted.param, Rank{wanted.rank}));
  const uint32_t room = std::exchange(*count, static_cast<uint32_t>(boxes.size()));
  const std::size_t filled = std::min<std::size_t>(room, boxes.size());
  if (filled * shape.size() > 0 && (offsets == nullptr || extents == nullptr))
    return missing("ebb_model_pieces: offsets or extents");
  for (std::size_t i = 0; i < filled; ++i) {
    std::ranges::copy(boxes[i].offset, offsets + i * shape.size());
    std::ranges::copy(boxes[i].extent, extents + i * shape.size());
  }
  return {};
}

}  // namespace
}  // namespace ebb::c

using ebb::c::guarded;

ebb_status ebb_model_plan(const ebb_model* model, uint32_t rank, uint32_t world,
                          ebb_plan* plan) noexcept {
  return guarded([&] { return ebb::c::plan(model, rank, world, plan); });
}

ebb_status ebb_model_pieces(const ebb_model* model, uint32_t rank, uint32_t world, int32_t which,
                            uint32_t param, uint64_t* offsets, uint64_t* extents,
                            uint32_t* boxes) noexcept {
  return guarded(
      [&] { return ebb::c::pieces(model, {rank, world, which, param}, offsets, extents, boxes); });
}
