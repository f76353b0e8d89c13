#include "ebb/libmuon/step/continuity.h"

#include <array>
#include <cstdio>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "ebb/formats/catalog/value_alike.h"
#include "ebb/formats/conversion/momentum.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/number_text.h"
#include "ebb/libmuon/spec/number_text.h"

namespace ebb::libmuon {
namespace {

using formats::MomentumForm;

const Value* find(const GroupEntry& group, std::string_view name) {
  for (const auto& [key, value] : group.settings)
    if (key == name) return &value;
  return nullptr;
}

std::optional<std::string> text_of(const Value* value) {
  if (value == nullptr) return std::nullopt;
  if (value->kind == Value::Kind::string) return value->text;
  if (value->kind == Value::Kind::boolean) return value->integer != 0 ? "yes" : "no";
  if (const auto number = formats::number_in(*value)) return number_text(*number);
  return std::nullopt;
}

// What a group says of one of our settings, under our name or the name that torch's optimizers have
// for it; nullopt when it says nothing.
std::optional<std::string> stored_text(const GroupEntry& group, std::string_view name) {
  if (const auto text = text_of(find(group, name))) return text;
  if (name == "beta") {
    const auto text = text_of(find(group, "momentum"));
    return text && formats::parse_number<double>(*text) ? text : std::nullopt;
  }
  const Value* betas = find(group, "betas");
  if (betas == nullptr || !formats::is_sequence(*betas) || betas->items.size() != 2)
    return std::nullopt;
  if (name == "beta1") return text_of(&betas->items[0]);
  return name == "beta2" ? text_of(&betas->items[1]) : std::nullopt;
}

bool same(const std::string& ours, const std::string& stored) {
  const auto a = formats::parse_number<double>(ours), b = formats::parse_number<double>(stored);
  return a && b ? *a == *b : ours == stored;
}

std::string differences(const GroupSpec& spec, std::uint32_t number, const GroupEntry& stored) {
  const auto ours = std::visit([](const auto& one) { return to_group(one); }, spec);
  std::string all;
  for (const auto& [name, value] : ours.settings) {
    if (name == "lr" || name == "momentum") continue;
    const auto text = stored_text(stored, name);
    if (!text || same(value, *text)) continue;
    all += compose("{}{} is {}, was {}", (all.empty() ? compose("group {}: ", number) : ", "), name,
                   value, printable(*text));
  }
  return all;
}

// For people: 20, where 1 / (1 - 0.95) is 19.999999999999982.
std::string rounded_text(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.6g", value);
  return text.data();
}

Result<std::string> compare_momentum(const MuonSpec& spec, const GroupEntry& stored,
                                     const TensorEntry& tensor) {
  const auto form = formats::momentum_form(stored, tensor);
  const auto wanted = spec.momentum == Momentum::sum ? MomentumForm::sum : MomentumForm::ema;
  const std::string ours = spec.momentum == Momentum::sum ? "a sum" : "an EMA";
  if (!form)
    return compose("nothing tells whether the momentum of {} is an EMA or a sum: it is taken as {}",
                   printable(tensor.name), ours);
  if (*form == wanted) return std::string();
  return Error{Code::layout,
               compose("the momentum of {} was kept as {}, the model keeps {}: it would be wrong "
                       "by a factor of {}",
                       printable(tensor.name), *form == MomentumForm::sum ? "a sum" : "an EMA",
                       ours, rounded_text(1 / (1 - spec.beta))),
               compose("ckpt-convert CHECKPOINT NEW --to ebb --momentum {}, then begin from NEW",
                       formats::name_of(wanted))};
}

void append(std::string& notes, const std::string& note) {
  if (note.empty()) return;
  notes += (notes.empty() ? "" : "; ") + note;
}

}  // namespace

Result<std::string> compare_groups(const ModelSpec& model, const Catalog& stored,
                                   std::span<const Held> held) {
  std::map<std::string_view, std::size_t> group_of;
  for (std::size_t i = 0; i < stored.groups.size(); ++i)
    for (const std::string& name : stored.groups[i].params) group_of.emplace(name, i);
  std::map<std::string_view, const TensorEntry*> momentum_of;
  for (const TensorEntry& tensor : stored.tensors)
    if (tensor.state.starts_with("momentum")) momentum_of.emplace(tensor.name, &tensor);
  std::set<std::pair<std::size_t, std::uint32_t>> compared;
  std::string notes;
  for (std::size_t i = 0; i < model.params.size(); ++i) {
    if (!held.empty() && held[i] != Held::all) continue;
    const ParamSpec& param = model.params[i];
    const auto found = group_of.find(param.name);
    if (found == group_of.end() || !compared.emplace(found->second, param.group).second) continue;
    const GroupEntry& group = stored.groups[found->second];
    const GroupSpec& spec = model.groups[param.group];
    if (const auto* muon = std::get_if<MuonSpec>(&spec)) {
      TensorEntry tensor;
      tensor.name = param.name;
      tensor.state = "momentum_buffer";
      const auto kept = momentum_of.find(param.name);
      EBB_TRY_ASSIGN(
          const std::string note,
          compare_momentum(*muon, group, kept == momentum_of.end() ? tensor : *kept->second));
      append(notes, note);
    }
    append(notes, differences(spec, param.group, group));
  }
  return notes;
}

Result<Catalog> groups_of(const formats::native::Manifest& manifest) {
  Catalog catalog;
  for (const formats::native::Group& group : manifest.groups) {
    formats::native::Group whole = group;
    if (group.optimizer == "muon") {
      EBB_TRY_ASSIGN(const MuonSpec spec, muon_from(group));
      whole = to_group(spec);
    }
    if (group.optimizer == "adamw") EBB_TRY(adam_from(group));
    GroupEntry& entry = catalog.groups.emplace_back();
    entry.optimizer = group.optimizer;
    for (const auto& [name, text] : whole.settings)
      entry.settings.emplace_back(name, Value::of_string(text));
  }
  for (const formats::native::Param& param : manifest.params)
    if (param.group < catalog.groups.size())
      catalog.groups[param.group].params.push_back(param.name);
  return catalog;
}

}  // namespace ebb::libmuon
