#include "ebb/formats/torch/composite.h"

#include <algorithm>

#include "ebb/formats/core/units.h"
#include "ebb/formats/torch/archive.h"
#include "ebb/formats/torch/unread.h"

namespace ebb::formats {
namespace {

constexpr std::uint64_t kPartBytes = 512;  // about what a part takes, and an entry made of it

struct Wrapper {
  std::string_view type;
  std::span<const PickleId> made_of;  // (class, dtype, size, ...)
  PickleId attributes = kNoPickle;    // a dict
};

// (function, class, arguments, attributes), perhaps a parameter. What torch.distributed makes is
// one rank's part of something: sharded.h reads it.
std::optional<Wrapper> wrapper_of(const PickleGraph& graph, PickleId id) {
  for (int depth = 0; depth < kMaxWrappers && graph.is(id, PickleKind::object); ++depth) {
    const std::span<const PickleId> args = graph.items(graph.args(id));
    if (graph.class_name(id).starts_with("torch._utils._rebuild_parameter") && !args.empty()) {
      id = args[0];
      continue;
    }
    const bool wrapper = graph.class_name(id) == "torch._tensor._rebuild_from_type_v2" &&
                         args.size() == 4 && graph.is(args[0], PickleKind::global) &&
                         graph.text(args[0]) == "torch._utils._rebuild_wrapper_subclass" &&
                         graph.is(args[1], PickleKind::global) &&
                         graph.is(args[2], PickleKind::tuple) &&
                         graph.is(args[3], PickleKind::dict);
    if (!wrapper || graph.text(args[1]).starts_with("torch.distributed.")) return std::nullopt;
    return Wrapper{graph.text(args[1]), graph.items(args[2]), args[3]};
  }
  return std::nullopt;
}

class PartsReader {
 public:
  explicit PartsReader(const PickleGraph& graph) : graph_(graph) {}

  // False: something in it is not read.
  Result<bool> add(const Wrapper& wrapper, const std::string& above, int depth) {
    const std::span<const PickleId> entries = graph_.items(wrapper.attributes);
    for (std::size_t i = 0; i + 1 < entries.size(); i += 2) {
      if (!graph_.is(entries[i], PickleKind::string)) return false;
      const std::string name = above + std::string(graph_.text(entries[i]));
      EBB_TRY(graph_.charge(kPartBytes + name.size()));
      const PickleId item = entries[i + 1];
      if (!is_torch_tensor(graph_, item)) {
        EBB_TRY_ASSIGN(Value value, value_of(graph_, item, nullptr));
        made_.whole.settings.emplace_back(name, std::move(value));
      } else if (const auto inner = wrapper_of(graph_, item)) {
        if (depth == kMaxWrappers) return false;
        made_.whole.settings.emplace_back(name, class_value(inner->type));
        EBB_TRY_ASSIGN(const bool read, add(*inner, name + ".", depth + 1));
        if (!read) return false;
      } else {
        if (unread_form(graph_, item)) return false;
        EBB_TRY_ASSIGN(TorchTensor tensor, torch_tensor(graph_, item));
        made_.parts.push_back({name, std::move(tensor)});
      }
    }
    return true;
  }

  TorchComposite take() { return std::move(made_); }

 private:
  static Value class_value(std::string_view type) {
    Value value;
    value.kind = Value::Kind::object;
    value.text = type;
    return value;
  }

  const PickleGraph& graph_;
  TorchComposite made_;
};

}  // namespace

Result<std::optional<TorchComposite>> composite_of(const PickleGraph& graph, PickleId id) {
  using Made = std::optional<TorchComposite>;
  const auto wrapper = wrapper_of(graph, id);
  if (!wrapper || wrapper->made_of.size() < 3 || !graph.is(wrapper->made_of[1], PickleKind::global))
    return Made();
  const auto dtype = torch_dtype_named(graph.text(wrapper->made_of[1]));
  auto shape = torch_shape(graph, wrapper->made_of[2]);
  const auto elems = shape ? checked_volume(*shape) : std::nullopt;
  if (!dtype || !elems || !checked_mul(*elems, bytes_of(*dtype))) return Made();
  PartsReader reader(graph);
  EBB_TRY_ASSIGN(const bool read, reader.add(*wrapper, "", 0));
  TorchComposite made = reader.take();
  if (!read || made.parts.empty()) return Made();
  made.whole.type = wrapper->type;
  made.whole.dtype = *dtype;
  made.whole.shape = std::move(*shape);
  return Made(std::move(made));
}

}  // namespace ebb::formats
