#include "ebb/formats/megatron/group_words.h"

#include "ebb/formats/core/bytes.h"

namespace ebb::formats::megatron {

std::optional<double> number_in(const Value* value) {
  if (value == nullptr) return std::nullopt;
  if (value->kind == Value::Kind::integer) return static_cast<double>(value->integer);
  if (value->kind == Value::Kind::real) return value->real;
  if (value->kind == Value::Kind::tensor && value->dtype == DType::f32 && value->raw.size() == 4)
    return load_le<float>(value->raw);
  return std::nullopt;
}

const Value* setting_of(const GroupEntry& group, std::string_view name) {
  for (const auto& [key, value] : group.settings)
    if (key == name) return &value;
  return nullptr;
}

bool is_decoupled(const GroupEntry& group) {
  const Value* decoupled = setting_of(group, kDecoupled);
  if (decoupled != nullptr) return decoupled->integer != 0;
  return setting_of(group, "bias_correction") != nullptr;
}

std::string said_optimizer(const GroupEntry& group) {
  const std::string adam = is_decoupled(group) ? "adamw" : "adam";
  if (const Value* said = setting_of(group, kOptimizer); said && said->kind == Value::Kind::string)
    return said->text == "adam" ? adam : said->text;
  return setting_of(group, "betas") != nullptr ? adam : std::string();
}

std::string optimizer_name(const GroupEntry& group) {
  std::string said = said_optimizer(group);
  // Muon's groups do not say: they have a momentum, and nothing of what torch's SGD has beside it.
  const bool muon = setting_of(group, "momentum") != nullptr && !setting_of(group, "dampening");
  return said.empty() && muon ? "muon" : said;
}

}  // namespace ebb::formats::megatron
