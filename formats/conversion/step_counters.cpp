#include "ebb/formats/conversion/step_counters.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "ebb/formats/core/bytes.h"
#include "ebb/formats/elements/box_reader.h"
#include "ebb/formats/state_dict/groups.h"
#include "ebb/formats/state_dict/plain_numbers.h"

namespace ebb::formats {

Result<bool> lift_step(const Checkpoint& source, const TensorEntry& stored,
                       const TensorEntry& tensor, Catalog& content) {
  if (tensor.state != "step" || volume(tensor.shape) != 1 || bits_of(tensor.dtype) % 8 != 0)
    return false;
  ByteVector bytes(bytes_of(stored.dtype));
  EBB_TRY(read_box(source, stored, whole(stored.shape), bytes));
  const std::optional<Value> value = number_in(stored.dtype, bytes);
  const std::optional<std::int64_t> steps = value ? counted(*value) : std::nullopt;
  return steps && content.param_steps.emplace(tensor.name, *steps).second;
}

void count_group_steps(Catalog& content) {
  for (const GroupEntry& group : content.groups) {
    const Value* step = setting_of(group, "step");
    const std::optional<std::int64_t> steps = step == nullptr ? std::nullopt : counted(*step);
    const bool has_own = std::ranges::any_of(
        group.params, [&](const std::string& name) { return content.param_steps.contains(name); });
    if (!steps || has_own) continue;
    for (const std::string& name : group.params) content.param_steps.emplace(name, *steps);
  }
}

StepCounters counters_in(const Catalog& source) {
  const bool tensors = std::ranges::any_of(
      source.tensors, [](const TensorEntry& tensor) { return tensor.state == "step"; });
  return source.param_steps.empty() || tensors ? StepCounters::tensors : StepCounters::values;
}

void lower_steps(const std::function<bool(const TensorEntry&)>& wanted, StepCounters counters,
                 Catalog& content, std::vector<MadeOf>& made_of) {
  std::set<std::string> stateful;
  for (const TensorEntry& tensor : content.tensors)
    if (!is_weight(tensor.state)) stateful.insert(tensor.name);
  for (const auto& [name, steps] : std::exchange(content.param_steps, {})) {
    TensorEntry tensor;
    tensor.name = name;
    tensor.state = "step";
    tensor.dtype = DType::f32;
    if (wanted && !wanted(tensor)) continue;
    if (counters == StepCounters::values && stateful.contains(name)) {
      content.param_steps.emplace(name, steps);
      continue;
    }
    MadeOf counter;
    append_le(counter.constant.emplace(), static_cast<float>(steps));
    content.tensors.push_back(std::move(tensor));
    made_of.push_back(std::move(counter));
  }
}

}  // namespace ebb::formats
