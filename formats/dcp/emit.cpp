#include <set>

#include "formats/dcp/dcp.h"
#include "formats/dcp/item_writer.h"
#include "formats/dcp/meaning.h"

namespace formats {
namespace {

class Emitter {
 public:
  Emitter(const Catalog& content, DcpItemWriter items)
      : content_(content), items_(std::move(items)) {}

  Result<EmitPlan> run() {
    for (const ValueEntry& entry : content_.values)
      TRY(items_.add_value(entry.key, entry.path, entry.value));
    TRY(add_groups_and_step());
    for (const TensorEntry& tensor : content_.tensors)
      if (tensor.state == "param") has_param_.insert(tensor.name);
    for (std::uint32_t i = 0; i < content_.tensors.size(); ++i) {
      Named named = name_of_tensor(content_.tensors[i]);
      TRY(items_.add_tensor(std::move(named.key), std::move(named.path), i));
    }
    return items_.finish();
  }

 private:
  struct Named {
    std::string key;
    std::vector<PathItem> path;
  };

  // Content that came from elsewhere has groups and a step but not torch's values for them.
  Result<> add_groups_and_step() {
    if (content_.step && !torch_step(content_.values) && !items_.has("step"))
      TRY(items_.add_value("step", {"step"}, Value::of_int(*content_.step)));
    if (!torch_groups(content_.values).empty()) return {};
    for (std::size_t i = 0; i < content_.groups.size(); ++i) {
      const GroupEntry& group = content_.groups[i];
      const auto add = [&](const std::string& name, const Value& value) {
        return items_.add_value("optimizer.param_groups." + std::to_string(i) + "." + name,
                                {"optimizer", "param_groups", static_cast<std::int64_t>(i), name},
                                value);
      };
      bool named = false;
      for (const auto& [name, value] : group.settings) {
        named |= name == "optimizer";
        TRY(add(name, value));
      }
      if (!named && !group.optimizer.empty())
        TRY(add("optimizer", Value::of_string(group.optimizer)));
      Value params;
      params.kind = Value::Kind::list;
      for (const std::string& name : group.params) params.items.push_back(Value::of_string(name));
      TRY(add("params", params));
    }
    return {};
  }

  // The content's own key where it means the same to a reader of DCP; else the key and path that
  // torch's state dicts would use.
  Named name_of_tensor(const TensorEntry& tensor) const {
    const bool in_model = tensor.state == "param" || tensor.state == "buffer" ||
                          (tensor.state == "master" && !has_param_.contains(tensor.name));
    if (tensor.key &&
        torch_identity(*tensor.key, tensor.path) == std::pair(tensor.name, tensor.state))
      return {*tensor.key, tensor.path.empty() ? std::vector<PathItem>{*tensor.key} : tensor.path};
    if (in_model) return {"model." + tensor.name, {"model", tensor.name}};
    if (tensor.state == "tensor") return {tensor.name, {tensor.name}};
    return {"optimizer.state." + tensor.name + "." + tensor.state,
            {"optimizer", "state", tensor.name, tensor.state}};
  }

  const Catalog& content_;
  DcpItemWriter items_;
  std::set<std::string> has_param_;
};

}  // namespace

Result<EmitPlan> emit_dcp(const EmitRequest& request) {
  TRY_ASSIGN(DcpItemWriter items, DcpItemWriter::make(request, ""));
  return Emitter(request.content, std::move(items)).run();
}

}  // namespace formats
