#include "ebb/libmuon/step/settings.h"

#include <cmath>

#include "ebb/libmuon/spec/number_text.h"

namespace ebb::libmuon {
namespace {

std::string text_of(const Layout::Spec& spec) {
  std::string text = compose("{} over {} ranks x {}, aligned to {}", name_of(spec.policy),
                             spec.mesh.shard_world, spec.mesh.replicas, spec.align_elems);
  if (!spec.owners.empty()) text += ", owners";
  for (const std::uint32_t owner : spec.owners) text += compose(" {}", owner);
  for (const auto& rows : spec.rows) {
    text += ", rows";
    for (const std::uint64_t some : rows) text += compose(" {}", some);
  }
  const formats::Submesh& within = spec.mesh.within;
  if (within.world == 0) return text;
  text += compose(", from rank {} of {} on", within.first, within.world);
  for (const auto* axes : {&within.shards, &within.copies})
    for (const formats::MeshAxis& axis : *axes) text += compose(", {}/{}", axis.size, axis.stride);
  return text;
}

std::string text_of(const AxisLayout& side) {
  std::string text = text_of(side.layout) + "; cut over axes";
  for (const std::string& axis : side.shards) text += " " + axis;
  text += ", copied along";
  for (const std::string& axis : side.copies) text += " " + axis;
  return text;
}

std::string text_of(HandIn hand_in) {
  if (hand_in == HandIn::partial) return "partial, over ranks";
  return hand_in == HandIn::added ? "added over micro-batches" : "reduced";
}

std::string text_of(const ParamSpec& param) {
  std::string text =
      compose("{} {} in group {}", param.name, formats::to_string(param.shape), param.group);
  if (!param.partition.empty()) text += ", partition " + param.partition;
  for (const Coordinate& at : param.at) text += compose(", {} {}", at.axis, at.index);
  for (const DimensionCut& cut : param.cuts)
    text += compose(", dimension {} cut over {}", cut.dimension, cut.axis);
  if (param.gradient != DType::f32) text += compose(", gradient in {}", name_of(param.gradient));
  if (param.weight != DType::f32) text += compose(", weights in {}", name_of(param.weight));
  return text;
}

}  // namespace

std::vector<Setting> settings_of(const EngineConfig& config, const Columns& columns) {
  const ModelSpec& model = config.model;
  std::vector<Setting> settings = {
      {"the number of parameters", std::to_string(model.params.size())},
      {"the number of groups", std::to_string(model.groups.size())},
      {"the tile size", std::to_string(config.tile_bytes)},
      {"the chunk size", std::to_string(config.chunk_bytes)},
      {"what is streamed", std::to_string(config.stream_above_bytes)},
      {"the room for early gradients", std::to_string(config.early_gradient_bytes)},
      {"the number of slots", std::to_string(config.slots)},
      {"how bf16 is multiplied", config.bf16 ? std::string(name_of(*config.bf16)) : "as measured"},
      {"the gradients' partition", text_of(config.partition.gradients)},
      {"the weights' partition", text_of(config.partition.weights)},
      {"the placement of Muon's state", std::string(name_of(config.partition.placement))},
      {"what gradients are handed in", text_of(config.partition.hand_in)},
      {"what becomes of partial gradients' sums",
       config.partial_sums == PartialSums::kept ? "kept" : "made twice"},
      {"what becomes of dropped state",
       config.dropped == DroppedState::allowed ? "allowed" : "refused"},
      {"the axes of the world", text_of(config.partition.axes)},
      {"the number of partitions", std::to_string(config.partition.parts.size())},
  };
  const bool bound = columns.masters() == Masters::bound;
  const auto states = state_names();
  for (std::uint32_t i = 0; i < states.size(); ++i)
    settings.push_back({"the dtype of " + states[i],
                        std::string(bound && i == kMaster ? "none" : name_of(columns.dtype(i)))});
  for (std::size_t i = 0; i < config.partition.parts.size(); ++i) {
    const AxisPartition& part = config.partition.parts[i];
    settings.push_back({compose("the name of partition {}", i), part.name});
    settings.push_back({"the gradients of partition " + part.name, text_of(part.gradients)});
    settings.push_back({"the weights of partition " + part.name, text_of(part.weights)});
  }
  for (std::size_t i = 0; i < model.params.size(); ++i)
    settings.push_back({compose("parameter {}", i), text_of(model.params[i])});
  for (std::size_t i = 0; i < model.groups.size(); ++i) {
    const auto group = std::visit([](const auto& spec) { return to_group(spec); }, model.groups[i]);
    const std::string of = compose(" of group {}", i);
    settings.push_back({"the optimizer" + of, group.optimizer});
    for (const auto& [name, value] : group.settings) settings.push_back({name + of, value});
  }
  return settings;
}

std::vector<Setting> settings_of(const StepArgs& args, const ModelSpec& model) {
  std::vector<Setting> settings = {{"inv_scale", number_text(args.inv_scale)},
                                   {"max_norm", number_text(args.max_norm)}};
  for (Setting& setting : settings_of_every_step(model)) settings.push_back(std::move(setting));
  return settings;
}

Result<> validate(const StepArgs& args) {
  const auto refuse = [](std::string_view name, double value, std::string_view range) {
    return Error{Code::usage,
                 compose("step: {} = {} is outside {}", name, number_text(value), range)};
  };
  const auto scale = static_cast<float>(args.inv_scale);
  if (!std::isfinite(args.inv_scale) || !std::isfinite(scale) || !(scale > 0))
    return refuse("inv_scale", args.inv_scale, "(0, infinity) in fp32");
  if (!std::isfinite(args.max_norm) || args.max_norm < 0)
    return refuse("max_norm", args.max_norm, "[0, infinity), where 0 does not clip");
  return {};
}

}  // namespace ebb::libmuon
