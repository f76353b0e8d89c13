#include "ebb/formats/torch/unread_form.h"

#include <algorithm>
#include <iterator>

#include "ebb/formats/core/json_text.h"
#include "ebb/formats/pickle/known_globals.h"
#include "ebb/formats/torch/tensor.h"

namespace ebb::formats {
namespace {

constexpr std::string_view kShardedHint =
    "all ranks' files are needed: save with torch.distributed.checkpoint.save, or each tensor's "
    "full_tensor()";
constexpr std::string_view kQuantizedHint = "dequantize() it before saving";

// Classes by the last word of their name, wherever a release keeps them.
struct Class {
  std::string_view word;
  std::string_view what;
  std::string_view hint;
};
constexpr Class kClasses[] = {
    {"DTensor", "a DTensor: one rank's rows of a sharded tensor", kShardedHint},
    {"ShardedTensor", "a ShardedTensor: one rank's rows of a sharded tensor", kShardedHint},
    {"OptimState8bit", "torchao's 8-bit state (OptimState8bit)", kQuantizedHint},
    {"OptimState4bit", "torchao's 4-bit state (OptimState4bit)", kQuantizedHint},
    {"OptimStateFp8", "torchao's FP8 state (OptimStateFp8)", kQuantizedHint},
};

// What torch makes tensors of that have no storage as others do.
constexpr Class kFunctions[] = {
    {"_rebuild_qtensor", "a quantized tensor", kQuantizedHint},
    {"_rebuild_sparse_tensor", "a sparse tensor", "save its to_dense()"},
    {"_rebuild_nested_tensor", "a nested tensor", "save its to_padded_tensor()"},
    {"_rebuild_meta_tensor_no_storage", "a tensor without data (on the device \"meta\")",
     "save it after it was materialized"},
    {"_rebuild_device_tensor_from_numpy", "another device's tensor as a numpy array",
     "save it after .cpu()"},
    {"_rebuild_device_tensor_from_cpu_tensor", "another device's tensor", "save it after .cpu()"},
};

std::string_view last_word(std::string_view name) { return name.substr(name.rfind('.') + 1); }
std::string_view first_word(std::string_view name) { return name.substr(0, name.find('.')); }

template <typename Table>
const Class* find_in(const Table& table, std::string_view word) {
  const auto* found = std::find_if(std::begin(table), std::end(table),
                                   [&](const Class& one) { return one.word == word; });
  return found == std::end(table) ? nullptr : found;
}

UnreadForm form_of_class(std::string_view name) {
  if (const Class* known = find_in(kClasses, last_word(name)))
    return {std::string(known->what), std::string(known->hint)};
  return {
      compose("a tensor of class {} ({})", printable(last_word(name)), printable(first_word(name))),
      compose("save it as a plain tensor; Python reads it where {} is installed",
              printable(first_word(name)))};
}

UnreadForm form_of_function(std::string_view name) {
  if (const Class* known = find_in(kFunctions, last_word(name)))
    return {std::string(known->what), std::string(known->hint)};
  return {compose("a tensor made by {}", printable(name)), "save it as a plain tensor"};
}

// Subclasses that add nothing to the elements: torch's own.
bool is_plain_class(std::string_view name) {
  return name.starts_with("torch.nn.parameter.") ||
         (name.starts_with("torch.") && name.find('.', 6) == std::string_view::npos);
}

// Attributes that a tensor was given; a dict, or one in a tuple with slots.
bool has_attributes(const PickleGraph& graph, std::span<const PickleId> args) {
  if (args.size() < 4 || graph.is(args[3], PickleKind::none)) return false;
  return !graph.is(args[3], PickleKind::dict) || !graph.items(args[3]).empty();
}

std::string_view name_at(const PickleGraph& graph, std::span<const PickleId> args, std::size_t at) {
  return at < args.size() && graph.is(args[at], PickleKind::global) ? graph.text(args[at])
                                                                    : std::string_view{};
}

// (class, dtype, size, ...)
std::optional<UnreadForm> form_of_wrapper(const PickleGraph& graph,
                                          std::span<const PickleId> args) {
  const std::string_view type = name_at(graph, args, 0);
  if (type.empty()) return std::nullopt;
  UnreadForm form = form_of_class(type);
  form.dtype = torch_dtype_named(name_at(graph, args, 1));
  if (args.size() > 2) form.shape = torch_shape(graph, args[2]);
  return form;
}

std::span<const PickleId> tuple_at(const PickleGraph& graph, std::span<const PickleId> args,
                                   std::size_t at) {
  return at < args.size() && graph.is(args[at], PickleKind::tuple) ? graph.items(args[at])
                                                                   : std::span<const PickleId>{};
}

bool is_plain_rebuild(std::string_view function) {
  return function == "torch._utils._rebuild_tensor" ||
         function == "torch._utils._rebuild_tensor_v2" ||
         function == "torch._utils._rebuild_tensor_v3";
}

bool wraps_another(std::string_view function) {
  return function.starts_with("torch._utils._rebuild_parameter") ||
         function == "torch.nn.parameter.Parameter";
}

}  // namespace

std::optional<UnreadForm> unread_form(const PickleGraph& graph, PickleId id) {
  for (int depth = 0; depth < kMaxWrappers && is_torch_tensor(graph, id); ++depth) {
    if (const auto maker = member_of_tensor_class(graph, graph.callee(id)))
      return form_of_class(maker->type);
    std::string_view function = graph.class_name(id);
    std::span<const PickleId> args = graph.items(graph.args(id));
    if (function == "torch._tensor._rebuild_from_type_v2") {  // (function, class, arguments, state)
      const std::string_view type = name_at(graph, args, 1);
      const bool attributes = has_attributes(graph, args);
      function = name_at(graph, args, 0);
      args = tuple_at(graph, args, 2);
      if (is_plain_rebuild(function) && attributes && !is_plain_class(type))
        return form_of_class(type);
    }
    if (is_plain_rebuild(function)) return std::nullopt;
    if (function == "torch._utils._rebuild_wrapper_subclass") return form_of_wrapper(graph, args);
    if (function.empty()) return std::nullopt;
    if (!wraps_another(function)) return form_of_function(function);
    if (args.empty()) return std::nullopt;
    id = args[0];
  }
  return std::nullopt;
}

Error error_of(const UnreadForm& form, const std::string& where) {
  return Error{Code::unsupported,
               compose("{}: {}; this version does not read it", where, form.what), form.hint};
}

}  // namespace ebb::formats
