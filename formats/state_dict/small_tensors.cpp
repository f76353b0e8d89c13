#include "ebb/formats/state_dict/small_tensors.h"

#include <algorithm>
#include <map>

#include "ebb/formats/catalog/key_path.h"
#include "ebb/formats/core/element_values.h"
#include "ebb/formats/core/float_cast.h"
#include "ebb/formats/state_dict/groups.h"
#include "ebb/formats/state_dict/key_split.h"
#include "ebb/formats/state_dict/plain_numbers.h"

namespace ebb::formats {
namespace {

constexpr std::uint64_t kMostElements = 16;

std::optional<Value> value_in(const Checkpoint& checkpoint, const TensorEntry& tensor) {
  ByteVector bytes(volume(tensor.shape) * bytes_of(tensor.dtype));
  if (!checkpoint.read(tensor, tensor.chunks.front(), 0, bytes)) return std::nullopt;
  std::vector<Value> numbers;
  for (std::size_t at = 0; at < bytes.size(); at += bytes_of(tensor.dtype)) {
    auto number = number_in(tensor.dtype, ByteView(bytes).subspan(at, bytes_of(tensor.dtype)));
    if (!number) return std::nullopt;
    numbers.push_back(std::move(*number));
  }
  if (tensor.shape.empty()) return std::move(numbers.front());
  return tensor.shape.size() == 1 ? std::optional(Value::of_list(std::move(numbers)))
                                  : std::nullopt;
}

// Of a list's item, whose list is one setting: not the list of all groups.
bool is_item(const std::vector<PathItem>& path) {
  return path.size() > 1 && std::holds_alternative<std::int64_t>(path.back()) &&
         !is_word(path[path.size() - 2], "param_groups");
}

// Of the first tensor in a value.
std::optional<DType> dtype_inside(const Value& value) {
  if (value.kind == Value::Kind::tensor) return value.dtype;
  for (const Value& item : value.items)
    if (const auto dtype = dtype_inside(item)) return dtype;
  return std::nullopt;
}

// An empty list, or tuple.
Value list_at(const Catalog& catalog, const std::vector<PathItem>& path) {
  Value list = Value::of_list({});
  const auto container = std::ranges::find(catalog.containers, path, &ContainerEntry::path);
  if (container != catalog.containers.end()) list.kind = container->kind;
  return list;
}

}  // namespace

bool is_small(const TensorEntry& tensor) {
  return tensor.part_of == nullptr && tensor.chunks.size() == 1 &&
         volume(tensor.shape) <= kMostElements &&
         tensor.chunks.front().box == whole(tensor.shape) && values_per_element(tensor.dtype) == 1;
}

Result<std::optional<double>> steps_counted(const Checkpoint& checkpoint,
                                            const TensorEntry& tensor) {
  if (tensor.state != "step" || !is_small(tensor) || volume(tensor.shape) != 1)
    return std::optional<double>();
  ByteVector element(bytes_of(tensor.dtype));
  EBB_TRY(checkpoint.read(tensor, tensor.chunks.front(), 0, element));
  double steps = 0;
  element_values(tensor.dtype, element, {&steps, 1});
  return std::optional(steps);
}

bool is_setting(const TensorEntry& tensor) {
  if (tensor.state != "tensor" || !tensor.key) return false;
  return !splits_at(KeyPath(*tensor.key, tensor.path), "param_groups").empty();
}

std::map<std::string, DType> settings_in_tensors(const Catalog& catalog) {
  std::map<std::string, DType> settings;
  const auto add = [&](const std::vector<PathItem>& path, DType dtype) {
    const auto word = std::find_if(path.rbegin(), path.rend(), [](const PathItem& item) {
      return std::holds_alternative<std::string>(item);
    });
    if (word == path.rend() || !is_floating(dtype)) return;
    const std::string& text = std::get<std::string>(*word);
    const auto [known, fresh] = settings.emplace(text.substr(text.rfind('.') + 1), dtype);
    if (!fresh && bits_of(dtype) < bits_of(known->second)) known->second = dtype;
  };
  for (const TensorEntry& tensor : catalog.tensors)
    if (is_small(tensor) && is_setting(tensor)) add(tensor.path, tensor.dtype);
  for (const ValueEntry& entry : catalog.values)
    if (const auto dtype = entry.echoed ? dtype_inside(entry.value) : std::nullopt)
      add(entry.path, *dtype);
  return settings;
}

std::vector<ValueEntry> values_in_tensors(const Checkpoint& checkpoint) {
  std::vector<ValueEntry> values;
  std::map<std::vector<PathItem>, std::size_t> lists;  // values that are lists, by their places
  for (const TensorEntry& tensor : checkpoint.catalog().tensors) {
    if (!tensor.key || !is_small(tensor)) continue;
    const bool setting = tensor.key->find("param_groups") != std::string::npos;
    if (!setting && !may_count_steps(*tensor.key)) continue;
    std::optional<Value> value = value_in(checkpoint, tensor);
    if (!value) continue;
    if (!is_item(tensor.path)) {
      values.push_back({*tensor.key, tensor.path, std::move(*value)});
      continue;
    }
    const std::vector<PathItem> above(tensor.path.begin(), tensor.path.end() - 1);
    const auto [list, fresh] = lists.emplace(above, values.size());
    if (fresh) values.push_back({joined(above), above, list_at(checkpoint.catalog(), above)});
    values[list->second].value.items.push_back(std::move(*value));
  }
  return values;
}

}  // namespace ebb::formats
