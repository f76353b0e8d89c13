#include "tools/swap_bench/advice.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <tuple>

#include "tools/cli/checkpoints.h"

namespace ebb::tools::swap_bench {
namespace {

// Of two settings that are alike one is faster in all of five rounds than the other in any of them
// once in 250 times: rare enough, with what beats() asks for beside.
constexpr std::uint32_t kLeastRounds = 5;
constexpr double kWorth = 1.1;                            // another setting, to change for it
constexpr std::uint64_t kSlots = 3;                       // an engine's default
constexpr std::uint64_t kMuonBytes = 8, kAdamBytes = 12;  // of state for an element

}  // namespace

bool beats(const Row& one, const Row& other) {
  const Rate &a = one.rates.mixed, &b = other.rates.mixed;
  return a.least > b.most && a.median - b.median > b.most - b.least && a.median > kWorth * b.median;
}

Advice advice_of(const Sweep& sweep) {
  const Row& usual = sweep.usual();
  Advice advice{.use = usual, .fastest = usual};
  for (const Row& row : sweep.rows)
    if (row.rates.mixed.median > advice.fastest.rates.mixed.median) advice.fastest = row;
  if (sweep.info.in_memory) {
    advice.verdict = Verdict::in_memory;
    return advice;
  }
  if (sweep.rounds < kLeastRounds) {
    advice.verdict = Verdict::too_few_rounds;
    return advice;
  }
  const auto rank = [](const Row& one) {
    return std::tuple(one.window(), -std::int64_t{one.setting.operation_bytes});
  };
  for (const Row& row : sweep.rows) {
    if (!beats(row, usual) || beats(advice.fastest, row)) continue;
    if (advice.verdict == Verdict::other_wins && rank(row) >= rank(advice.use)) continue;
    advice.verdict = Verdict::other_wins;
    advice.use = row;
  }
  return advice;
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
  step.seconds = static_cast<double>(step.read_bytes + step.written_bytes) / rates.mixed.median;
  step.store_bytes = kSlots * state.bytes;
  step.create_seconds = static_cast<double>(step.store_bytes) / rates.write.median;
  return step;
}

}  // namespace ebb::tools::swap_bench
