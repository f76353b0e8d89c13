#include "ebb/formats/deepspeed/emit_content.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "ebb/formats/catalog/value_alike.h"
#include "ebb/formats/core/number_text.h"
#include "ebb/formats/deepspeed/config.h"

namespace ebb::formats::deepspeed {
namespace {

bool muon_first(const OutGroup& a, const OutGroup& b) { return a.muon && !b.muon; }

// The place in the job's list, where the engine made the name of it: "group1".
std::optional<std::size_t> number_in_name(std::string_view name) {
  constexpr std::string_view kGroup = "group";
  if (!name.starts_with(kGroup)) return std::nullopt;
  return parse_number<std::size_t>(name.substr(kGroup.size()));
}

// Formats that keep each optimizer's groups together (Megatron) part the halves that the engine
// makes of each of the job's groups. Names bring them together again.
void join_halves(std::vector<OutGroup>& groups) {
  std::map<std::string, std::size_t, std::less<>> places;  // of the job's groups in its list
  std::set<std::size_t> taken;
  std::vector<std::string> unnumbered;
  for (const OutGroup& group : groups) {
    const auto name = job_group(group.settings);
    if (!name) return;
    const auto number = number_in_name(*name);
    if (!places.try_emplace(std::string(*name), number.value_or(0)).second) continue;
    if (number)
      taken.insert(*number);
    else
      unnumbered.emplace_back(*name);
  }
  std::size_t free = 0;
  for (const std::string& name : unnumbered) {
    while (taken.contains(free)) ++free;
    places[name] = free++;
  }
  std::ranges::stable_sort(groups, [&](const OutGroup& a, const OutGroup& b) {
    const std::size_t left = places.find(*job_group(a.settings))->second;
    const std::size_t right = places.find(*job_group(b.settings))->second;
    return left != right ? left < right : muon_first(a, b);
  });
}

// The engine makes Muon's half and Adam's half of each group that a job passes, in this order. A
// job whose content comes from elsewhere and has one Muon group most likely passes one group.
void guess_order(std::vector<OutGroup>& groups, EmitPlan& plan) {
  const auto muons = std::ranges::count_if(groups, &OutGroup::muon);
  if (muons == 0 || groups.size() < 2) return;
  if (muons == 1) std::ranges::stable_sort(groups, muon_first);
  plan.notes.push_back(
      compose("{} parameter groups, {}: DeepSpeed loads groups by position, so the job must make "
              "them in this order",
              groups.size(), muons == 1 ? "Muon's first" : "in the order of the source"));
}

}  // namespace

std::optional<std::string_view> job_group(
    const std::vector<std::pair<std::string, Value>>& settings) {
  for (const auto& [key, value] : settings) {
    if (key != "name" || value.kind != Value::Kind::string) continue;
    for (const std::string_view half : {"muon-params", "adam-params"}) {
      std::string_view name = value.text;
      if (!name.ends_with(half)) continue;
      name.remove_suffix(half.size());
      if (name.ends_with('-')) name.remove_suffix(1);
      return name;
    }
  }
  return std::nullopt;
}

void order_groups(const Catalog& content, bool made_by_engine, Content& out, EmitPlan& plan) {
  // Muon's groups are sorted by shape, the largest first, where the engine sees shapes: a model
  // made under stage 3's zero.Init hides them, so stage 3 knows best what stage 3 needs.
  const bool as_stored = made_by_engine && stage_of(content) == 3 && out.stage == 3;
  bool sorted = false;
  for (OutGroup& group : out.groups) {
    if (group.muon && !as_stored) {
      std::ranges::stable_sort(
          group.params, [](const Trained& a, const Trained& b) { return a.shape > b.shape; });
      sorted = sorted || group.params.front().shape != group.params.back().shape;
    }
    if (round_robin(out.config, out.stage))
      group.params = dealt(std::move(group.params), out.world);
  }
  if (sorted && out.stage == 3)
    plan.notes.emplace_back(
        "Muon's parameters are sorted by shape, as stage 3 does where the model was made without "
        "zero.Init: a job that makes it under zero.Init takes them for each other's");
  if (!made_by_engine)
    guess_order(out.groups, plan);
  else if (std::ranges::is_partitioned(out.groups, &OutGroup::muon))
    join_halves(out.groups);
  // Groups that were made of the parameters' states are none of the content's.
  if (list_params(content.groups) && !std::ranges::is_sorted(out.groups, {}, &OutGroup::number))
    for (const OutGroup& group : out.groups) plan.group_order.push_back(group.number);
}

}  // namespace ebb::formats::deepspeed
