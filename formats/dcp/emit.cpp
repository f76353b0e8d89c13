#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "ebb/formats/catalog/composite.h"
#include "ebb/formats/catalog/key_path.h"
#include "ebb/formats/dcp/dcp.h"
#include "ebb/formats/dcp/item_writer.h"
#include "ebb/formats/dcp/joined_lists.h"
#include "ebb/formats/state_dict/state_dict.h"

namespace ebb::formats {
namespace {

// Numbers in a path are positions in a list to a reader of DCP; keys of a dict are words.
std::vector<PathItem> worded(std::vector<PathItem> path,
                             const std::set<std::vector<PathItem>>& dicts) {
  if (dicts.empty()) return path;
  std::vector<PathItem> above;
  for (PathItem& item : path) {
    const bool in_dict = dicts.contains(above);
    above.push_back(item);
    if (const auto* number = std::get_if<std::int64_t>(&item); number != nullptr && in_dict)
      item = std::to_string(*number);
  }
  return path;
}

std::optional<std::string> word_of(const Value& key) {
  if (key.kind == Value::Kind::string) return key.text;
  if (key.kind == Value::Kind::integer) return std::to_string(key.integer);
  return std::nullopt;
}

bool is_flattened(const Value& value) {
  if (value.kind == Value::Kind::dict)
    return !value.entries.empty() && std::ranges::all_of(value.entries, [](const auto& entry) {
      return word_of(entry.first).has_value();
    });
  return value.kind == Value::Kind::list && std::ranges::any_of(value.items, [](const auto& item) {
           return item.kind == Value::Kind::dict ? !item.entries.empty() : is_flattened(item);
         });
}

// As torch flattens what it saves: dicts always, lists where they hold a dict of something.
void flatten(ValueEntry entry, std::vector<ValueEntry>& out) {
  if (!is_flattened(entry.value)) return out.push_back(std::move(entry));
  if (entry.path.empty()) entry.path = {entry.key};
  const auto below = [&](std::string word, PathItem item, Value value) {
    ValueEntry part{entry.key + "." + std::move(word), entry.path, std::move(value), entry.echoed};
    part.path.push_back(std::move(item));
    flatten(std::move(part), out);
  };
  for (auto& [key, value] : entry.value.entries)
    below(*word_of(key), *word_of(key), std::move(value));
  for (std::size_t i = 0; i < entry.value.items.size(); ++i)
    below(std::to_string(i), static_cast<std::int64_t>(i), std::move(entry.value.items[i]));
}

// Places of nothing are values here: no key leads through them.
void add_empty_containers(Catalog& content) {
  std::set<std::vector<PathItem>> above;  // of something
  const auto add = [&](std::vector<PathItem> path) {
    while (!path.empty() && above.insert(path).second) path.pop_back();
  };
  for (const TensorEntry& tensor : content.tensors) add(tensor.path);
  for (const ValueEntry& value : content.values) add(value.path);
  std::vector<std::vector<PathItem>> places;
  for (const ContainerEntry& container : content.containers) places.push_back(container.path);
  for (std::vector<PathItem>& place : places) {
    if (place.empty()) continue;
    place.pop_back();
    add(std::move(place));
  }
  for (const ContainerEntry& container : content.containers) {
    if (container.path.empty() || above.contains(container.path)) continue;
    Value nothing;
    nothing.kind = container.kind;
    content.values.push_back({joined(container.path), container.path, std::move(nothing)});
  }
}

}  // namespace

void respell_for_dcp(Catalog& content) {
  take_parts(content);  // while it is one value
  add_empty_containers(content);
  dcp::join_lists(content);
  std::vector<ValueEntry> values;
  for (ValueEntry& entry : content.values) flatten(std::move(entry), values);
  content.values = std::move(values);
  respell_as_state_dict(content);
}

Result<EmitPlan> emit_dcp(const EmitRequest& request) {
  EBB_TRY_ASSIGN(dcp::ItemWriter items, dcp::ItemWriter::make(request, ""));
  StateDict dict = state_dict_of(request.content);
  EBB_TRY(check_reads_back(request.content, dict));
  std::set<std::vector<PathItem>> dicts;
  for (const ContainerEntry& container : request.content.containers)
    if (container.kind == Value::Kind::dict) dicts.insert(container.path);
  for (PlacedValue& value : dict.values)
    EBB_TRY(items.add_value(std::move(value.place.key), worded(std::move(value.place.path), dicts),
                            value.value));
  std::map<const Composite*, std::vector<std::uint32_t>> parts;
  const auto& tensors = request.content.tensors;
  for (std::uint32_t i = 0; i < tensors.size(); ++i) {
    StatePlace& place = dict.tensors[i];
    if (tensors[i].part_of == nullptr) {
      EBB_TRY(items.add_tensor(std::move(place.key), worded(std::move(place.path), dicts), i));
      continue;
    }
    std::vector<std::uint32_t>& its = parts[tensors[i].part_of->whole.get()];
    its.push_back(i);
    if (its.size() < tensors[i].part_of->whole->parts) continue;
    TensorEntry part = tensors[i];
    part.key = std::move(place.key);
    part.path = std::move(place.path);
    TensorEntry whole = whole_of(part);
    EBB_TRY(items.add_composite(std::move(*whole.key), worded(std::move(whole.path), dicts), its));
  }
  return items.finish();
}

}  // namespace ebb::formats
