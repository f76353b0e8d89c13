// Source: libmuon/step/stored_state.cpp, which takes a store over, and libmuon/plan/columns.cpp,
// whose states these are.
#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "ebb/formats/core/compose.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/native/ebb.h"

namespace ebb::formats {
namespace native {
namespace {

constexpr std::array<std::string_view, 5> kEngineStates = {"master", "momentum_buffer", "exp_avg",
                                                           "exp_avg_sq", "second_momentum_buffer"};
// Those that have the parameter's shape.
constexpr std::array<std::string_view, 3> kMoments = {"momentum_buffer", "exp_avg", "exp_avg_sq"};

// What a store would have to be for the engine to go on from it.
class EngineView {
 public:
  explicit EngineView(const Catalog& catalog) {
    for (const TensorEntry& tensor : catalog.tensors)
      params_[tensor.name].emplace(tensor.state, &tensor);
    for (const GroupEntry& group : catalog.groups)
      for (const std::string& name : group.params) {
        trained_.insert(name);
        params_[name];
      }
  }

  std::vector<std::string> troubles() {
    for (const auto& [name, states] : params_) look_at(name, states);
    return std::move(troubles_);
  }

 private:
  using States = std::map<std::string_view, const TensorEntry*>;

  void look_at(std::string_view name, const States& states) {
    const std::string shown = printable(name, 120);
    for (const auto& [state, tensor] : states)
      if (!is_weight(state) && std::ranges::find(kEngineStates, state) == kEngineStates.end())
        return trouble(compose("it has no state {}, as {} has one", printable(state, 60), shown));
    const auto has = [&](std::string_view state) { return states.contains(state); };
    if (!trained_.contains(name) && std::ranges::none_of(kMoments, has)) return;
    // Of other formats the weights themselves have to do for masters.
    const auto master = states.find(has("master") ? "master" : "param");
    if (master == states.end()) return trouble(compose("{} has no master", shown));
    if (!has("momentum_buffer") && !(has("exp_avg") && has("exp_avg_sq")))
      return trouble(compose("{} has neither momentum_buffer nor exp_avg and exp_avg_sq", shown));
    const Shape& shape = master->second->shape;
    for (const std::string_view state : kMoments)
      if (const auto moment = states.find(state); moment != states.end())
        check_moment(shown, *moment->second, shape);
  }

  void check_moment(const std::string& name, const TensorEntry& moment, const Shape& shape) {
    if (moment.shape != shape)
      return trouble(compose("{} of {} has the shape {}, its weights {}", moment.state, name,
                             to_string(moment.shape), to_string(shape)));
    if (moment.dtype != DType::f32 && moment.dtype != DType::bf16)
      trouble(compose("{} of {} is {}, and it goes on from F32 and BF16", moment.state, name,
                      name_of(moment.dtype)));
  }

  void trouble(std::string what) { troubles_.push_back(std::move(what)); }

  std::map<std::string_view, States> params_;
  std::set<std::string_view> trained_;
  std::vector<std::string> troubles_;  // one for each parameter or state
};

bool is_of_another(const ResumeQuestion& question) {
  return !EngineView(question.catalog).troubles().empty();
}

std::string why_of_another(const ResumeQuestion& question) {
  const std::vector<std::string> troubles = EngineView(question.catalog).troubles();
  std::string why = "the engine cannot go on from this state: " + troubles.front();
  if (troubles.size() > 1) why += compose(" (and {} more)", troubles.size() - 1);
  return why;
}

using Says = ResumeRule::Says;
constexpr ResumeRule kRules[] = {
    {.says = Says::no, .applies = is_of_another, .tell = why_of_another},
    {Says::yes, always,
     "the engine takes over a store of {saved} on any number of ranks, with the same bits"}};

}  // namespace
}  // namespace native

ResumeRules ebb_resume() { return {"Ebb's engine", native::kRules}; }

}  // namespace ebb::formats
