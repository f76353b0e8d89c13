#include "ebb/libmuon/step/settings.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "ebb/libmuon/plan/digest.h"
#include "ebb/libmuon/spec/number_text.h"

namespace ebb::libmuon {
namespace {

std::string text_of(const Layout::Spec& spec) {
  std::string text = compose("{} over {} ranks x {}, aligned to {}", name_of(spec.policy),
                             spec.mesh.shard_world, spec.mesh.replicas, spec.align_elems);
  if (!spec.owners.empty()) text += ", owners";
  for (const std::uint32_t owner : spec.owners) text += compose(" {}", owner);
  return text;
}

std::int64_t digest_of(std::span<const Setting> settings) {
  Digest digest;
  for (const Setting& setting : settings) {
    digest.add(setting.name);
    digest.add(setting.value);
  }
  return static_cast<std::int64_t>(digest.value() >> 2);  // agree() takes it with either sign
}

constexpr std::size_t kMostValue = 100;  // bytes of a value in a message
constexpr std::size_t kMostNamed = 8;    // values, and ranks of each

std::string ranks_text(const std::vector<std::size_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (std::size_t i = 0; i < std::min(ranks.size(), kMostNamed); ++i)
    text += compose("{}{}", i == 0 ? " " : ", ", ranks[i]);
  if (ranks.size() > kMostNamed) text += compose(" and {} more", ranks.size() - kMostNamed);
  return text;
}

// "0.95 on ranks 0, 2; 0.5 on rank 1"; the same on every rank.
Result<std::string> who_has_what(Communicator& ranks, const std::string& mine) {
  EBB_TRY_ASSIGN(
      const auto said,
      libswap::gather(ranks, formats::view_of(mine).first(std::min(mine.size(), kMostValue))));
  std::vector<std::pair<std::string_view, std::vector<std::size_t>>> values;
  for (std::size_t rank = 0; rank < said.size(); ++rank) {
    const std::string_view value = formats::text_of(said[rank]);
    auto known = std::ranges::find(values, value, [](const auto& one) { return one.first; });
    if (known == values.end()) known = values.insert(known, {value, {}});
    known->second.push_back(rank);
  }
  std::string text;
  for (std::size_t i = 0; i < std::min(values.size(), kMostNamed); ++i)
    text +=
        compose("{}{} on {}", i == 0 ? "" : "; ", values[i].first, ranks_text(values[i].second));
  if (values.size() > kMostNamed) text += compose("; and {} more", values.size() - kMostNamed);
  return text;
}

Result<bool> equal_everywhere(Communicator& ranks, std::int64_t mine) {
  EBB_TRY_ASSIGN(const std::int64_t lowest, ranks.agree(mine));
  EBB_TRY_ASSIGN(const std::int64_t highest, ranks.agree(-mine));
  return lowest == -highest;
}

}  // namespace

std::vector<Setting> settings_of(const EngineConfig& config) {
  const ModelSpec& model = config.model;
  std::vector<Setting> settings = {
      {"the number of parameters", std::to_string(model.params.size())},
      {"the number of groups", std::to_string(model.groups.size())},
      {"the tile size", std::to_string(config.tile_bytes)},
      {"the chunk size", std::to_string(config.chunk_bytes)},
      {"the number of slots", std::to_string(config.slots)},
      {"the gradients' partition", text_of(config.partition.gradients)},
      {"the weights' partition", text_of(config.partition.weights)},
  };
  for (std::size_t i = 0; i < model.params.size(); ++i)
    settings.push_back({compose("parameter {}", i),
                        compose("{} {} in group {}", model.params[i].name,
                                formats::to_string(model.params[i].shape), model.params[i].group)});
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
  for (std::size_t i = 0; i < model.groups.size(); ++i)
    settings.push_back(
        {compose("lr of group {}", i),
         number_text(std::visit([](const auto& spec) { return spec.lr; }, model.groups[i]))});
  return settings;
}

Result<> same_everywhere(Communicator& ranks, std::span<const Setting> settings) {
  EBB_TRY_ASSIGN(const bool same, equal_everywhere(ranks, digest_of(settings)));
  if (same) return {};
  // Counts come first in a list, so lists of different lengths differ before one of them ends.
  EBB_TRY_ASSIGN(const std::int64_t count, ranks.agree(static_cast<std::int64_t>(settings.size())));
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    EBB_TRY_ASSIGN(const bool equal, equal_everywhere(ranks, digest_of(settings.subspan(i, 1))));
    if (equal) continue;
    EBB_TRY_ASSIGN(const std::string who, who_has_what(ranks, settings[i].value));
    return Error{Code::usage, compose("{} is not the same on all ranks: {}", settings[i].name, who),
                 "give every rank the same model, settings and step arguments"};
  }
  return Error{Code::usage, "the ranks were given different numbers of settings"};
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
