#include "tools/swap_bench/advice.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <tuple>

#include "tools/cli/checkpoints.h"

namespace ebb::tools::swap_bench {
namespace {

constexpr double kNearly = 0.95;
constexpr std::uint64_t kSlots = 3;                       // an engine's default
constexpr std::uint64_t kMuonBytes = 8, kAdamBytes = 12;  // of state for an element

}  // namespace

Row best_of(const Sweep& sweep) {
  double most = 0;
  for (const Row& row : sweep.rows) most = std::max(most, row.rates.mixed);
  const Row* best = nullptr;
  for (const Row& row : sweep.rows) {
    if (row.rates.mixed < kNearly * most) continue;
    const auto rank = [](const Row& one) {
      return std::tuple(one.window(), -std::int64_t{one.setting.operation_bytes});
    };
    if (best == nullptr || rank(row) < rank(*best)) best = &row;
  }
  return best == nullptr ? sweep.usual : *best;
}

Result<State> state_of_model(const std::string& path) {
  EBB_TRY_ASSIGN(const auto checkpoint, open_checkpoint(path));
  struct Parameter {
    std::uint64_t elems = 0;
    bool matrix = false;
  };
  std::map<std::string_view, Parameter> parameters;
  for (const TensorEntry& tensor : checkpoint->catalog().tensors) {
    // A parameter's largest state has its shape; counters have one element.
    Parameter& parameter = parameters[tensor.name];
    const std::uint64_t elems = formats::volume(tensor.shape);
    if (elems < parameter.elems) continue;
    parameter = {elems, tensor.shape.size() == 2};
  }
  State state;
  for (const auto& [name, parameter] : parameters)
    (parameter.matrix ? state.muon_elems : state.adam_elems) += parameter.elems;
  state.bytes = kMuonBytes * state.muon_elems + kAdamBytes * state.adam_elems;
  return state;
}

Step step_of(const State& state, const Rates& rates) {
  Step step{
      .state = state, .read_bytes = state.paged_bytes(), .written_bytes = state.paged_bytes()};
  step.seconds = static_cast<double>(step.read_bytes + step.written_bytes) / rates.mixed;
  step.store_bytes = kSlots * state.bytes;
  step.create_seconds = static_cast<double>(step.store_bytes) / rates.write;
  return step;
}

}  // namespace ebb::tools::swap_bench
