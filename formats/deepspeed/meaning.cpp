#include "ebb/formats/deepspeed/meaning.h"

#include <algorithm>
#include <cstring>

namespace ebb::formats::deepspeed {
namespace {

const Value* setting(const GroupEntry& group, std::string_view name) {
  for (const auto& [key, value] : group.settings)
    if (key == name) return &value;
  return nullptr;
}

bool is_true(const Value* value) {
  return value != nullptr && value->kind == Value::Kind::boolean && value->integer != 0;
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return text;
}

const Value* find(const Value* dict, std::string_view key) {
  return dict == nullptr || dict->kind != Value::Kind::dict ? nullptr : dict->find(key);
}

std::string_view text_of_value(const Value* value) {
  return value != nullptr && value->kind == Value::Kind::string ? std::string_view(value->text)
                                                                : std::string_view{};
}

}  // namespace

std::int64_t stage_number(const PickleGraph& graph, PickleId id) {
  constexpr std::string_view kNames[] = {"disabled", "optimizer_states", "gradients", "weights"};
  if (id == kNoPickle) return 1;
  if (graph.is(id, PickleKind::integer)) return graph.integer(id);
  if (!graph.is(id, PickleKind::object)) return 1;
  const std::span<const PickleId> args = graph.items(graph.args(id));
  if (args.size() == 1 && graph.is(args[0], PickleKind::integer)) return graph.integer(args[0]);
  if (args.size() == 2 && graph.is(args[1], PickleKind::string))
    for (std::size_t i = 0; i < std::size(kNames); ++i)
      if (graph.text(args[1]) == kNames[i]) return static_cast<std::int64_t>(i);
  return 1;
}

Result<Config> config_of(const PickleGraph& graph) {
  Config config;
  const PickleId id = graph.find(graph.root(), "ds_config");
  if (id == kNoPickle) return config;
  EBB_TRY_ASSIGN(config.whole, value_of(graph, id, nullptr));
  const Value* optimizer = find(&config.whole, "optimizer");
  config.optimizer = text_of_value(find(optimizer, "type"));
  const Value* params = find(optimizer, "params");
  // A type of AdamW forces the mode; Adam has it unless told otherwise.
  const Value* mode = find(params, "adam_w_mode");
  config.adam_w_mode = lower(config.optimizer) == "adamw" || mode == nullptr || is_true(mode);
  config.torch_adam = is_true(find(params, "torch_adam"));
  const Value* zero = find(&config.whole, "zero_optimization");
  const std::string_view device = text_of_value(find(find(zero, "offload_optimizer"), "device"));
  config.offload = device == "cpu" || device == "nvme" || is_true(find(zero, "cpu_offload"));
  return config;
}

std::string group_optimizer(const Config& config, const GroupEntry& group) {
  const Value* muon = setting(group, "use_muon");
  if (is_true(muon)) return "muon";
  std::string kind = lower(config.optimizer);
  const bool adam = kind == "adam" || kind == "adamw" || (kind == "muon" && muon != nullptr);
  if (!adam) return kind;
  if (const Value* decoupled = setting(group, "decoupled_weight_decay"))
    return is_true(decoupled) ? "adamw" : "adam";
  return config.adam_w_mode ? "adamw" : "adam";
}

bool is_torch_group(const GroupEntry& group) { return setting(group, "foreach") != nullptr; }

std::string optimizer_class(const Config& config, const std::vector<GroupEntry>& groups) {
  const auto any = [&](auto test) { return std::any_of(groups.begin(), groups.end(), test); };
  if (any([](const GroupEntry& group) { return setting(group, "use_muon") != nullptr; }))
    return "MuonWithAuxAdam";
  const std::string kind = lower(config.optimizer);
  const bool cpu = config.offload;
  if (kind == "adam" || kind == "adamw") {
    if (config.torch_adam || any(is_torch_group)) return config.adam_w_mode ? "AdamW" : "Adam";
    return cpu ? "DeepSpeedCPUAdam" : "FusedAdam";
  }
  if (kind == "lion") return cpu ? "DeepSpeedCPULion" : "FusedLion";
  if (kind == "adagrad") return cpu ? "DeepSpeedCPUAdagrad" : "Adagrad";
  if (kind == "lamb") return "FusedLamb";
  return config.optimizer;
}

std::optional<double> number_of(const Value& value) {
  if (value.kind == Value::Kind::integer) return static_cast<double>(value.integer);
  if (value.kind == Value::Kind::real) return value.real;
  if (value.kind != Value::Kind::tensor || value.raw.size() != bytes_of(value.dtype))
    return std::nullopt;
  if (value.dtype == DType::f32) {
    float number = 0;
    std::memcpy(&number, value.raw.data(), sizeof number);
    return number;
  }
  if (value.dtype == DType::i64) {
    std::int64_t number = 0;
    std::memcpy(&number, value.raw.data(), sizeof number);
    return static_cast<double>(number);
  }
  return std::nullopt;
}

Result<Value> loss_scaler_of(const PickleGraph& graph, PickleId id) {
  Value scaler;
  if (id == kNoPickle || !graph.is(id, PickleKind::object) || graph.state(id) == kNoPickle)
    return scaler;
  EBB_TRY_ASSIGN(const Value state, value_of(graph, graph.state(id), nullptr));
  const std::string_view name = graph.class_name(id);
  scaler.kind = Value::Kind::dict;
  scaler.entries.emplace_back(Value::of_string("class"),
                              Value::of_string(std::string(name.substr(name.rfind('.') + 1))));
  for (const auto& [key, value] : state.entries) {
    const bool plain = value.kind == Value::Kind::boolean || value.kind == Value::Kind::integer ||
                       value.kind == Value::Kind::real || value.kind == Value::Kind::string;
    if (plain) scaler.entries.emplace_back(key, value);
  }
  return scaler;
}

}  // namespace ebb::formats::deepspeed
