#include "ebb/formats/megatron/optimizers.h"

#include <algorithm>
#include <utility>

#include "ebb/formats/catalog/resume.h"
#include "ebb/formats/core/bytes.h"
#include "ebb/formats/megatron/run_args.h"
#include "ebb/formats/state_dict/groups.h"

namespace ebb::formats::megatron {
namespace {

// Keys of several optimizers without "chained_<N>." before them, which is the default since 0.14
// for states in the model's own space.
bool avoids_prefix(const Catalog& content) {
  const Value* metadata = value_at(content, {kContentMetadata});
  if (metadata == nullptr) return false;
  const Value* avoid = metadata->find("chained_optim_avoid_prefix");
  const Value* type = metadata->find(kShardingType);
  return avoid != nullptr && avoid->integer != 0 && (type == nullptr || type->text == kModelSpace);
}

}  // namespace

std::optional<double> number_in(const Value* value) {
  if (value == nullptr) return std::nullopt;
  if (value->kind == Value::Kind::integer) return static_cast<double>(value->integer);
  if (value->kind == Value::Kind::real) return value->real;
  if (value->kind == Value::Kind::tensor && value->dtype == DType::f32 && value->raw.size() == 4)
    return load_le<float>(value->raw);
  return std::nullopt;
}

bool is_decoupled(const GroupEntry& group) {
  const Value* decoupled = setting_of(group, kDecoupled);
  if (decoupled != nullptr) return decoupled->integer != 0;
  return setting_of(group, "bias_correction") != nullptr;
}

std::string said_optimizer(const GroupEntry& group) {
  const std::string adam = is_decoupled(group) ? "adamw" : "adam";
  if (const Value* said = setting_of(group, kOptimizer); said && said->kind == Value::Kind::string)
    return said->text == "adam" ? adam : said->text;
  return setting_of(group, "betas") != nullptr ? adam : std::string();
}

std::string optimizer_name(const GroupEntry& group) {
  std::string said = said_optimizer(group);
  // Muon's groups do not say: they have a momentum, and nothing of what torch's SGD has beside it.
  const bool muon = setting_of(group, "momentum") != nullptr && !setting_of(group, "dampening");
  return said.empty() && muon ? "muon" : said;
}

OptimizerChain::OptimizerChain(const Catalog& content, const std::vector<GroupEntry>& groups)
    : muon_(has_optimizer(content, "muon")),
      others_distributed_(muon_ ? has_distributed_beside_muon(content)
                                : run_arg(content, "use_distributed_optimizer").value_or(1) != 0) {
  number_groups(groups);
  for (const std::uint32_t number : numbers_) count_ = std::max(count_, number + 1);
  prefixed_ = count_ > 1 && !avoids_prefix(content);
  for (std::size_t i = groups.size(); i > 0; --i)
    if (groups[i - 1].optimizer != "muon") first_other_ = numbers_[i - 1];
  for (const TensorEntry& tensor : content.tensors)
    if (tensor.state == "exp_avg") of_param_.emplace(tensor.name, first_other_);
  for (std::size_t i = 0; i < numbers_.size(); ++i)
    for (const std::string& name : groups[i].params) of_param_.insert_or_assign(name, numbers_[i]);
}

void OptimizerChain::number_groups(const std::vector<GroupEntry>& groups) {
  const auto is_other = [](const GroupEntry& g) {
    return !g.optimizer.empty() && g.optimizer != "muon";
  };
  const auto other = std::ranges::find_if(groups, is_other);
  using Optimizer = std::pair<std::string, bool>;  // name, of experts
  const auto optimizer_of = [&](const GroupEntry& group) {
    const Value* experts = setting_of(group, "is_expert_parallel");
    const GroupEntry& named = group.optimizer.empty() && other != groups.end() ? *other : group;
    return Optimizer(named.optimizer, !muon_ && experts != nullptr && experts->integer != 0);
  };
  std::vector<Optimizer> order;
  for (const GroupEntry& group : groups)
    if (std::find(order.begin(), order.end(), optimizer_of(group)) == order.end())
      order.push_back(optimizer_of(group));
  std::stable_partition(order.begin(), order.end(),
                        [](const Optimizer& optimizer) { return optimizer.first == "muon"; });
  for (const GroupEntry& group : groups)
    numbers_.push_back(static_cast<std::uint32_t>(
        std::find(order.begin(), order.end(), optimizer_of(group)) - order.begin()));
}

std::uint32_t OptimizerChain::of_param(const std::string& name) const {
  const auto found = of_param_.find(name);
  return found == of_param_.end() ? 0 : found->second;
}

bool OptimizerChain::is_distributed(std::uint32_t number) const {
  return muon_ ? number != 0 && others_distributed_ : others_distributed_;
}

bool has_distributed_beside_muon(const Catalog& content) {
  if (value_at(content, {"args"}) != nullptr)
    return run_arg(content, "use_layer_wise_param_layout").value_or(0) != 0;
  const Value* metadata = value_at(content, {kContentMetadata});
  return metadata == nullptr || metadata->find(kShardingType) != nullptr;
}

}  // namespace ebb::formats::megatron
