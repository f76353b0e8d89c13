#include <algorithm>
#include <set>
#include <span>
#include <string>

#include "ebb/formats/core/json_text.h"
#include "ebb/formats/pickle/known_globals.h"

namespace ebb::formats {

using Name = std::string_view;

namespace {

// What other readers call an object is no name of Python's.
bool is_unsafe_name(std::string_view name) {
  return name == kCallOfAResult || name.ends_with("builtins.getattr") ||
         name.ends_with("__builtin__.getattr") ||
         (name.find('.') != std::string_view::npos && !is_known_global(name));
}

void add_names(const Value& value, std::vector<std::string_view>& names) {
  if (value.kind == Value::Kind::object && is_unsafe_name(value.text)) names.push_back(value.text);
  for (const Value& item : value.items) add_names(item, names);
  for (const auto& [key, item] : value.entries) {
    add_names(key, names);
    add_names(item, names);
  }
}

bool is_getattr(Name callee) {
  return callee == "builtins.getattr" || callee == "__builtin__.getattr";
}

// getattr of anything but an enumeration or a tensor class, and calls of what other calls returned.
bool is_misuse(const PickleGraph& graph, PickleId id) {
  if (!graph.is(id, PickleKind::object)) return false;
  const Name callee = graph.class_name(id);
  if (callee.empty()) return !member_of_tensor_class(graph, graph.callee(id));
  if (!is_getattr(callee) || member_of_tensor_class(graph, id)) return false;
  const std::span<const PickleId> args = graph.items(graph.args(id));
  return args.size() != 2 || !graph.is(args[0], PickleKind::global) ||
         !is_enumeration(graph.text(args[0]));
}

Error refused(const std::string& where, std::string_view name) {
  return Error{
      Code::corrupt,
      compose("{}: the pickle names {}, which no framework writes here; nothing was executed",
              where, json_string(name))};
}

// Where torch takes a class, imports it and makes a tensor of it, whatever it is called: the second
// argument of _rebuild_from_type_v2, the first of _rebuild_wrapper_subclass. In that order.
using Places = std::set<std::pair<PickleId, std::size_t>>;  // tuple, item

// False where an object is made in another way.
bool add_class_places(const PickleGraph& graph, PickleId id, Places& places) {
  const PickleId args = graph.args(id);
  const std::span<const PickleId> items = graph.items(args);
  constexpr Name kWrapper = "torch._utils._rebuild_wrapper_subclass";
  if (graph.class_name(id) == kWrapper) return places.emplace(args, 0), true;
  if (graph.class_name(id) != "torch._tensor._rebuild_from_type_v2") return false;
  places.emplace(args, 1);
  const bool wraps = items.size() > 2 && graph.is(items[0], PickleKind::global) &&
                     graph.text(items[0]) == kWrapper;
  if (wraps && graph.is(items[2], PickleKind::tuple)) places.emplace(items[2], 0);
  return true;
}

// The names that stand in such places and nowhere else: nothing calls them.
std::set<Name> tensor_classes(const PickleGraph& graph) {
  std::set<Name> classes, elsewhere;
  const auto add = [&](PickleId id, std::set<Name>& names) {
    if (id != kNoPickle && graph.is(id, PickleKind::global)) names.insert(graph.text(id));
  };
  Places places;
  add(graph.root(), elsewhere);
  for (PickleId id = 0; id < graph.size(); ++id) {
    if (!graph.is(id, PickleKind::object)) continue;
    add(graph.callee(id), elsewhere);
    add(graph.state(id), elsewhere);
    if (!add_class_places(graph, id, places))
      for (const PickleId argument : graph.items(graph.args(id))) add(argument, elsewhere);
  }
  for (PickleId id = 0; id < graph.size(); ++id) {
    const PickleKind kind = graph.kind(id);
    const bool holds = kind == PickleKind::tuple || kind == PickleKind::list ||
                       kind == PickleKind::dict || kind == PickleKind::set ||
                       kind == PickleKind::persistent;
    const std::span<const PickleId> items = holds ? graph.items(id) : std::span<const PickleId>{};
    for (std::size_t i = 0; i < items.size(); ++i)
      add(items[i], places.contains({id, i}) ? classes : elsewhere);
  }
  std::erase_if(classes, [&](Name name) { return elsewhere.contains(name); });
  return classes;
}

}  // namespace

std::string_view unsafe_name_below(const PickleGraph& graph, PickleId id) {
  std::vector<PickleId> rest{id};
  std::vector<bool> seen(graph.size());
  while (!rest.empty()) {
    const PickleId at = rest.back();
    rest.pop_back();
    if (at == kNoPickle || seen[at]) continue;
    seen[at] = true;
    switch (graph.kind(at)) {
      case PickleKind::global:
        if (!is_known_global(graph.text(at))) return graph.text(at);
        break;
      case PickleKind::object:
        if (is_misuse(graph, at)) return kCallOfAResult;
        rest.insert(rest.end(), {graph.callee(at), graph.args(at), graph.state(at)});
        break;
      case PickleKind::tuple:
      case PickleKind::list:
      case PickleKind::dict:
      case PickleKind::set:
      case PickleKind::persistent: {
        const std::span<const PickleId> items = graph.items(at);
        rest.insert(rest.end(), items.begin(), items.end());
        break;
      }
      default:
        break;
    }
  }
  return {};
}

std::optional<TensorClassMember> member_of_tensor_class(const PickleGraph& graph, PickleId id) {
  if (!graph.is(id, PickleKind::object) || !is_getattr(graph.class_name(id))) return std::nullopt;
  const std::span<const PickleId> args = graph.items(graph.args(id));
  const bool named = args.size() == 2 && graph.is(args[0], PickleKind::global) &&
                     graph.is(args[1], PickleKind::string);
  if (!named || !is_tensor_class(graph.text(args[0])) || graph.text(args[1]).starts_with("__"))
    return std::nullopt;
  return TensorClassMember{graph.text(args[0]), graph.text(args[1])};
}

std::string_view unsafe_part(const Value& value) {
  std::vector<std::string_view> names;
  add_names(value, names);
  return names.empty() ? std::string_view{} : names.front();
}

std::vector<UnsafeValue> unsafe_values(const Catalog& catalog) {
  std::vector<UnsafeValue> found;
  const auto look_at = [&](const std::string& key, const Value& value) {
    if (const Name name = unsafe_part(value); !name.empty())
      found.push_back({key, std::string(name)});
  };
  for (const ValueEntry& entry : catalog.values)
    if (!entry.echoed) look_at(entry.key, entry.value);
  for (std::size_t i = 0; i < catalog.groups.size(); ++i)
    for (const auto& [name, value] : catalog.groups[i].settings)
      look_at(compose("parameter group {}: {}", i, name), value);
  return found;
}

Error error_of(const UnsafeValue& value, std::string_view checkpoint) {
  return refused(compose("{}: value {}", checkpoint, json_string(value.key)), value.name);
}

Result<> refuse_hidden_calls(const PickleGraph& graph, const std::vector<const Value*>& values) {
  std::vector<std::string_view> shown;
  for (const Value* value : values) add_names(*value, shown);
  if (!shown.empty()) return {};  // they are told already, and what is inside them is theirs
  UnknownNames names;
  names.look_at(graph, "");
  return names.refuse();
}

void UnknownNames::look_at(const PickleGraph& graph, const std::string& file) {
  const bool known = std::ranges::all_of(
      graph.names(), [](const PickleGraph::Name& used) { return is_known_global(used.name); });
  const std::set<Name> classes = known ? std::set<Name>() : tensor_classes(graph);
  for (const PickleGraph::Name& used : graph.names())
    if (!is_known_global(used.name) && !classes.contains(used.name))
      first_use_.try_emplace(used.name, file, compose("{}:{}", graph.where(), used.offset));
  for (PickleId id = 0; id < graph.size(); ++id)
    if (is_misuse(graph, id))
      first_use_.try_emplace(
          std::string(graph.class_name(id).empty() ? kCallOfAResult : graph.class_name(id)), file,
          graph.where());
}

void UnknownNames::show_in(Catalog& catalog) const {
  std::set<std::string, std::less<>> shown;
  for (UnsafeValue& value : unsafe_values(catalog)) shown.insert(std::move(value.name));
  std::map<std::string_view, std::size_t> count;  // of each file's so far
  for (const auto& [name, use] : first_use_) {
    if (shown.contains(name)) continue;
    Value value;
    value.kind = Value::Kind::object;
    value.text = name;
    const std::size_t number = ++count[use.file];
    const std::string key =
        compose("pickle of {}{}", use.file, number == 1 ? "" : compose(" ({})", number));
    catalog.values.push_back({key, {key}, std::move(value)});
  }
}

Result<> UnknownNames::refuse() const {
  if (first_use_.empty()) return {};
  const auto& [name, use] = *first_use_.begin();
  return refused(use.where, name);
}

Result<> require_known_globals(const PickleGraph& graph) { return refuse_hidden_calls(graph, {}); }

}  // namespace ebb::formats
