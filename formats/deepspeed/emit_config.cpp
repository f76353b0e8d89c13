#include "ebb/formats/deepspeed/emit_config.h"

#include <algorithm>
#include <numeric>

#include "ebb/formats/catalog/resume.h"
#include "ebb/formats/core/dtype.h"

namespace ebb::formats::deepspeed {
namespace {

constexpr std::string_view kZero = "zero_optimization";
constexpr std::uint64_t kSubGroupElems = 1'000'000'000;  // DeepSpeed's default
constexpr std::uint64_t kAlignBytes = 16;

bool is_true(const Value* value) {
  return value != nullptr && value->kind == Value::Kind::boolean && value->integer != 0;
}

std::string_view text_of(const Value* value) {
  return value != nullptr && value->kind == Value::Kind::string ? std::string_view(value->text)
                                                                : std::string_view{};
}

Value dict_of(std::vector<std::pair<Value, Value>> entries) {
  Value value;
  value.kind = Value::Kind::dict;
  value.entries = std::move(entries);
  return value;
}

Value& entry_of(Value& dict, std::string_view key) {
  for (auto& [name, value] : dict.entries)
    if (name.kind == Value::Kind::string && name.text == key) return value;
  return dict.entries.emplace_back(Value::of_string(std::string(key)), Value{}).second;
}

// As the configuration spells it; one Muon group makes the whole optimizer DeepSpeed's Muon.
std::string optimizer_type(const std::vector<GroupEntry>& groups) {
  std::string type;
  for (const GroupEntry& group : groups)
    if (type.empty() || group.optimizer == "muon") type = group.optimizer;
  if (type == "adamw") return "AdamW";
  if (!type.empty() && type[0] >= 'a' && type[0] <= 'z') type[0] = static_cast<char>(type[0] - 32);
  return type;
}

}  // namespace

const Value* setting(const Value& config, std::string_view section, std::string_view key) {
  const Value* part = config.find(section);
  return part == nullptr ? nullptr : part->find(key);
}

std::optional<DType> model_dtype(const Value& config) {
  for (const std::string_view section : {"bf16", "bfloat16"})
    if (is_true(setting(config, section, "enabled"))) return DType::bf16;
  if (is_true(setting(config, "fp16", "enabled"))) return DType::f16;
  return std::nullopt;
}

std::uint64_t sub_group_elems(const Value& config) {
  const Value* size = setting(config, kZero, "sub_group_size");
  if (size != nullptr && size->kind == Value::Kind::integer && size->integer > 0)
    return static_cast<std::uint64_t>(size->integer);
  if (size != nullptr && size->kind == Value::Kind::real && size->real >= 1 && size->real < 1e18)
    return static_cast<std::uint64_t>(size->real);
  return kSubGroupElems;
}

std::uint64_t param_alignment(const Value& config, DType model) {
  if (!is_true(setting(config, kZero, "parameter_alignment"))) return 1;
  return kAlignBytes / std::gcd(kAlignBytes, std::uint64_t{bytes_of(model)});
}

namespace {

bool offloads(const Value& config) {
  const Value* offload = setting(config, kZero, "offload_optimizer");
  const std::string_view device = offload == nullptr ? "" : text_of(offload->find("device"));
  return device == "cpu" || device == "nvme" || is_true(setting(config, kZero, "cpu_offload"));
}

}  // namespace

bool is_bf16_optimizer(const Value& config, std::int64_t stage) {
  const std::string_view sums = text_of(setting(config, "data_types", "grad_accum_dtype"));
  return stage == 1 && model_dtype(config) == DType::bf16 && !offloads(config) &&
         (sums == "fp32" || sums == "float32");
}

bool round_robin(const Value& config, std::int64_t stage) {
  return stage < 3 && is_true(setting(config, kZero, "round_robin_gradients")) &&
         !is_bf16_optimizer(config, stage);
}

bool cuts_momentum(const Value& config, std::int64_t stage) {
  return offloads(config) || is_bf16_optimizer(config, stage);
}

void default_settings(const Value& config, std::vector<std::pair<std::string, Value>>& settings) {
  constexpr std::string_view kOfNoGroup[] = {"torch_adam", "adam_w_mode"};
  const Value* params = setting(config, "optimizer", "params");
  if (params == nullptr) return;
  for (const auto& [name, value] : params->entries)
    if (std::ranges::find(kOfNoGroup, name.text) == std::end(kOfNoGroup))
      settings.emplace_back(name.text, value);
  const Value* optimizer = config.find("optimizer");
  const std::string_view type = text_of(optimizer->find("type"));
  if (type == "Adam" || type == "AdamW")
    settings.emplace_back("bias_correction", Value::of_bool(true));
}

std::int64_t stage_of(const Catalog& content) {
  const Value* stage = value_at(content, {"zero_stage"});
  if (stage == nullptr) stage = value_at(content, {"ds_config", kZero, "stage"});
  return stage != nullptr && stage->kind == Value::Kind::integer ? stage->integer : 0;
}

Value config_for(const Value* given, std::int64_t stage, DType model,
                 const std::vector<GroupEntry>& groups) {
  Value config = given != nullptr && given->kind == Value::Kind::dict ? *given : dict_of({});
  if (given == nullptr) {
    const std::string type = optimizer_type(groups);
    if (!type.empty())
      entry_of(config, "optimizer") = dict_of({{Value::of_string("type"), Value::of_string(type)}});
    const std::string_view section = model == DType::f16 ? "fp16" : "bf16";
    if (model != DType::f32)
      entry_of(config, section) = dict_of({{Value::of_string("enabled"), Value::of_bool(true)}});
  }
  Value& zero = entry_of(config, kZero);
  if (zero.kind != Value::Kind::dict) zero = dict_of({});
  entry_of(zero, "stage") = Value::of_int(stage);
  return config;
}

}  // namespace ebb::formats::deepspeed
