#include "ebb/formats/state_dict/state_dict.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "ebb/formats/state_dict/meaning.h"

namespace ebb::formats {
namespace {

class Placing {
 public:
  explicit Placing(const Catalog& content) : content_(content) {}

  StateDict run() {
    for (const ValueEntry& entry : content_.values)
      add(entry.key, entry.path.empty() && !entry.key.empty() ? Path{entry.key} : entry.path,
          entry.value);
    add_step();
    add_groups();
    for (const TensorEntry& tensor : content_.tensors)
      if (tensor.state == "param") has_param_.insert(tensor.name);
    for (const TensorEntry& tensor : content_.tensors) placed_.tensors.push_back(place_of(tensor));
    return std::move(placed_);
  }

 private:
  using Path = std::vector<PathItem>;

  void add(std::string key, Path path, Value value) {
    placed_.values.push_back({{std::move(key), std::move(path)}, std::move(value)});
  }

  // Content that came from elsewhere has groups and a step but not torch's values for them.
  void add_step() {
    const bool taken = std::any_of(placed_.values.begin(), placed_.values.end(),
                                   [](const auto& value) { return value.place.key == "step"; });
    if (content_.step && !torch_step(content_.values) && !taken)
      add("step", {"step"}, Value::of_int(*content_.step));
  }

  void add_groups() {
    if (!torch_groups(content_.values).empty()) return;
    for (std::size_t i = 0; i < content_.groups.size(); ++i) {
      const GroupEntry& group = content_.groups[i];
      const auto add_setting = [&](const std::string& name, const Value& value) {
        add("optimizer.param_groups." + std::to_string(i) + "." + name,
            {"optimizer", "param_groups", static_cast<std::int64_t>(i), name}, value);
      };
      bool named = false;
      for (const auto& [name, value] : group.settings) {
        named |= name == "optimizer";
        add_setting(name, value);
      }
      if (!named && !group.optimizer.empty())
        add_setting("optimizer", Value::of_string(group.optimizer));
      Value params;
      params.kind = Value::Kind::list;
      for (const std::string& name : group.params) params.items.push_back(Value::of_string(name));
      add_setting("params", params);
    }
  }

  StatePlace place_of(const TensorEntry& tensor) const {
    if (tensor.key) return {*tensor.key, tensor.path.empty() ? Path{*tensor.key} : tensor.path};
    const bool in_model = tensor.state == "param" || tensor.state == "buffer" ||
                          (tensor.state == "master" && !has_param_.contains(tensor.name));
    if (in_model) return {"model." + tensor.name, {"model", tensor.name}};
    if (tensor.state == "tensor") return {tensor.name, {tensor.name}};
    return {"optimizer.state." + tensor.name + "." + tensor.state,
            {"optimizer", "state", tensor.name, tensor.state}};
  }

  const Catalog& content_;
  StateDict placed_;
  std::set<std::string_view> has_param_;
};

}  // namespace

StateDict state_dict_of(const Catalog& content) { return Placing(content).run(); }

}  // namespace ebb::formats
