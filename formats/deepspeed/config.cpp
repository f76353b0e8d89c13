#include "ebb/formats/deepspeed/config.h"

#include <algorithm>
#include <numeric>

#include "ebb/formats/catalog/resume.h"
#include "ebb/formats/core/bytes.h"

namespace ebb::formats::deepspeed {
namespace {

constexpr std::string_view kZero = "zero_optimization";
constexpr std::uint64_t kSubGroupElems = 1'000'000'000;  // DeepSpeed's default
constexpr std::uint64_t kAlignBytes = 16;

bool is_true(const Value* value) {
  return value != nullptr && value->kind == Value::Kind::boolean && value->integer != 0;
}

std::string_view text_or_empty(const Value* value) {
  return value != nullptr && value->kind == Value::Kind::string ? std::string_view(value->text)
                                                                : std::string_view{};
}

Value& entry_of(Value& dict, std::string_view key) {
  for (auto& [name, value] : dict.entries)
    if (name.kind == Value::Kind::string && name.text == key) return value;
  dict.add(key, Value{});
  return dict.entries.back().second;
}

bool offloads(const Value& config) {
  const Value* offload = setting(config, kZero, "offload_optimizer");
  const std::string_view device = offload == nullptr ? "" : text_or_empty(offload->find("device"));
  return device == "cpu" || device == "nvme" || is_true(setting(config, kZero, "cpu_offload"));
}

const Value* setting_of(const GroupEntry& group, std::string_view name) {
  for (const auto& [key, value] : group.settings)
    if (key == name) return &value;
  return nullptr;
}

// A group of torch's own optimizer: its settings say so.
bool is_of_torch(const GroupEntry& group) { return setting_of(group, "foreach") != nullptr; }

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return text;
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

bool is_bf16_optimizer(const Value& config, std::int64_t stage) {
  const std::string_view sums = text_or_empty(setting(config, "data_types", "grad_accum_dtype"));
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
  const std::string_view type = text_or_empty(optimizer->find("type"));
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
  Value config = given != nullptr && given->kind == Value::Kind::dict ? *given : Value::of_dict();
  if (given == nullptr) {
    const std::string type = optimizer_type(groups);
    if (!type.empty())
      entry_of(config, "optimizer") = Value::of_dict({{"type", Value::of_string(type)}});
    const std::string_view section = model == DType::f16 ? "fp16" : "bf16";
    if (model != DType::f32)
      entry_of(config, section) = Value::of_dict({{"enabled", Value::of_bool(true)}});
  }
  Value& zero = entry_of(config, kZero);
  if (zero.kind != Value::Kind::dict) zero = Value::of_dict();
  entry_of(zero, "stage") = Value::of_int(stage);
  return config;
}

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
  if (const Value* optimizer = config.whole.find("optimizer"))
    config.optimizer = text_or_empty(optimizer->find("type"));
  // A type of AdamW forces the mode; Adam has it unless told otherwise.
  const Value* params = setting(config.whole, "optimizer", "params");
  const Value* mode = params == nullptr ? nullptr : params->find("adam_w_mode");
  config.adam_w_mode = lower(config.optimizer) == "adamw" || mode == nullptr || is_true(mode);
  config.torch_adam = params != nullptr && is_true(params->find("torch_adam"));
  config.offload = offloads(config.whole);
  return config;
}

std::string group_optimizer(const Config& config, const GroupEntry& group) {
  const Value* muon = setting_of(group, "use_muon");
  if (is_true(muon)) return "muon";
  std::string kind = lower(config.optimizer);
  const bool adam = kind == "adam" || kind == "adamw" || (kind == "muon" && muon != nullptr);
  // torch's own Adam says it, which a run may have made itself: its configuration then has none.
  const Value* decoupled = setting_of(group, "decoupled_weight_decay");
  if (decoupled != nullptr && (adam || kind.empty())) return is_true(decoupled) ? "adamw" : "adam";
  if (!adam) return kind;
  return config.adam_w_mode ? "adamw" : "adam";
}

std::string optimizer_class(const Config& config, const std::vector<GroupEntry>& groups) {
  const auto any = [&](auto test) { return std::any_of(groups.begin(), groups.end(), test); };
  if (any([](const GroupEntry& group) { return setting_of(group, "use_muon") != nullptr; }))
    return "MuonWithAuxAdam";
  const std::string kind = lower(config.optimizer);
  const bool cpu = config.offload;
  if (kind == "adam" || kind == "adamw") {
    if (config.torch_adam || any(is_of_torch)) return config.adam_w_mode ? "AdamW" : "Adam";
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
  if (value.dtype == DType::f32) return load_le<float>(value.raw);
  if (value.dtype == DType::i64) return static_cast<double>(load_le<std::int64_t>(value.raw));
  return std::nullopt;
}

Value first_scaler(bool dynamic) {
  if (!dynamic)
    return Value::of_dict({{"cur_scale", Value::of_real(1.0)}, {"dynamic", Value::of_bool(false)}});
  return Value::of_dict({{"cur_scale", Value::of_real(65536.0)},
                         {"dynamic", Value::of_bool(true)},
                         {"cur_iter", Value::of_int(0)},
                         {"last_overflow_iter", Value::of_int(-1)},
                         {"scale_factor", Value::of_real(2.0)},
                         {"scale_window", Value::of_int(1000)},
                         {"min_scale", Value::of_real(1.0)},
                         {"delayed_shift", Value::of_int(1)},
                         {"cur_hysteresis", Value::of_int(1)},
                         {"consecutive_hysteresis", Value::of_bool(false)},
                         {"raise_error_at_min_scale", Value::of_bool(true)},
                         {"dtype", Value::of_dtype(DType::f16)}});
}

Result<Value> loss_scaler_of(const PickleGraph& graph, PickleId id) {
  Value scaler;
  if (id == kNoPickle || !graph.is(id, PickleKind::object) || graph.state(id) == kNoPickle)
    return scaler;
  EBB_TRY_ASSIGN(const Value state, value_of(graph, graph.state(id), nullptr));
  const std::string_view name = graph.class_name(id);
  scaler =
      Value::of_dict({{"class", Value::of_string(std::string(name.substr(name.rfind('.') + 1)))}});
  for (const auto& [key, value] : state.entries) {
    const bool plain = value.kind == Value::Kind::boolean || value.kind == Value::Kind::integer ||
                       value.kind == Value::Kind::real || value.kind == Value::Kind::string;
    if (plain) scaler.entries.emplace_back(key, value);
  }
  return scaler;
}

}  // namespace ebb::formats::deepspeed
