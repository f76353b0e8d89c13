// ebb-plans: docs/plans.md. What the planner says of public models at 8, 64 and 1,024 ranks: every
// rank's plan is made, nothing is run.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>

#include "ebb/libmuon/plan/traffic.h"
#include "ebb/libmuon/step/engine.h"
#include "tests/libmuon/support/real_models.h"

namespace {

namespace libmuon = ebb::libmuon;
namespace test = ebb::test;
using ebb::DType;
using ebb::Policy;
using ebb::Rank;
using libmuon::Engine;
using libmuon::EngineConfig;
using libmuon::EnginePlan;

// A rank of the machine that seconds are predicted for.
constexpr double kFlops = 400e12;  // a second, of Newton-Schulz in bf16
constexpr double kDisk = 3e9;      // bytes a second, both ways together
constexpr double kWire = 50e9;     // bytes a second, each way
constexpr double kMB = 1e6, kGB = 1e9, kMiB = 1 << 20;

// Matrices are cut as a partition of their own, and so are the others, which a flat buffer may cut
// anywhere: as ZeRO cuts groups.
EngineConfig config_of(const std::string& model, std::uint32_t ranks, Policy policy) {
  EngineConfig config{.model = test::real_model(model), .budget_bytes = ~std::uint64_t{0} >> 1};
  config.partition.axes = {{"data", ranks}};
  libmuon::AxisLayout cut;
  cut.layout.policy = policy;
  cut.layout.align_elems = 2;
  cut.shards = {"data"};
  libmuon::AxisLayout others = cut;
  if (policy == Policy::zero12_boundary) others.layout.policy = Policy::zero12;
  config.partition.parts = {{"matrices", cut, cut}, {"others", others, others}};
  for (libmuon::ParamSpec& param : config.model.params) {
    param.partition = param.group == 0 ? "matrices" : "others";
    param.gradient = param.weight = DType::bf16;
  }
  return config;
}

// Of one number of all ranks.
struct Spread {
  double most = 0, sum = 0;
  void add(double one) {
    most = std::max(most, one);
    sum += one;
  }
  double over_mean(std::uint32_t ranks) const { return sum > 0 ? most * ranks / sum : 1; }
};

struct Plans {
  Spread flops, state, sent, budget, workspace, seconds;
  double padding = 0;
};

double seconds_of(const EnginePlan& plan) {
  const double paged = 2 * static_cast<double>(plan.state_bytes);
  return std::max({plan.newton_schulz_flops / kFlops, paged / kDisk,
                   static_cast<double>(plan.step_sent_bytes) / kWire});
}

constexpr auto kLimit = std::chrono::minutes(2);  // what takes longer is left out, by name

std::optional<Plans> plans_of(const EngineConfig& config, std::uint32_t ranks) {
  const auto end = std::chrono::steady_clock::now() + kLimit;
  Plans plans;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    if (std::chrono::steady_clock::now() > end) return std::nullopt;
    const auto plan = Engine::plan(config, Rank{rank});
    EBB_CHECK(plan.has_value());
    plans.flops.add(plan->newton_schulz_flops);
    plans.state.add(static_cast<double>(plan->state_bytes));
    plans.sent.add(static_cast<double>(plan->step_sent_bytes));
    plans.budget.add(static_cast<double>(plan->least_budget_bytes));
    plans.workspace.add(static_cast<double>(plan->workspace_bytes));
    plans.seconds.add(seconds_of(*plan));
    plans.padding = plan->padding_ratio;
  }
  return plans;
}

std::uint64_t matrix_elems(const libmuon::ModelSpec& model) {
  std::uint64_t elems = 0;
  for (const libmuon::ParamSpec& param : model.params)
    if (param.group == 0) elems += ebb::formats::volume(param.shape);
  return elems;
}

void print_row(const std::string& model, std::uint32_t ranks, Policy policy) {
  const EngineConfig config = config_of(model, ranks, policy);
  const auto found = plans_of(config, ranks);
  if (!found) {
    std::fprintf(stderr, "bench plans: left out: %s on %u ranks, %s: more than two minutes\n",
                 model.c_str(), ranks, std::string(name_of(policy)).c_str());
    return;
  }
  const Plans& plans = *found;
  const auto others = libmuon::traffic_of_others(matrix_elems(config.model), ranks, 2);
  const auto a_rank = [&](std::size_t which) {
    return static_cast<double>(others[which].bytes) / ranks / kMB;
  };
  std::printf(
      "| %s | %u | %s | %.2f | %.2f | %.2f | %.1f | %.1f | %.1f | %.1f | %.0f | %.0f | "
      "%.2f | %.3f |\n",
      model.c_str(), ranks, std::string(name_of(policy)).c_str(), plans.flops.over_mean(ranks),
      plans.state.over_mean(ranks), plans.state.most / kGB, plans.sent.sum / ranks / kMB,
      plans.sent.most / kMB, a_rank(1), a_rank(2), plans.budget.most / kMiB,
      plans.workspace.most / kMiB, 100 * plans.padding, plans.seconds.most);
  std::fflush(stdout);
}

constexpr const char* kHead = R"(# Plans of public models

Printed by `./dev bench plans`: the planner's own numbers for every rank, with nothing run. Shapes
are those of `tests/fixtures/shapes`; matrices are trained by Muon (keller's, fp32 state), all else
by AdamW, each kind as a partition of its own; gradients and weights travel in bf16. Layouts:
`zero3` (each parameter cut evenly), `zero12` (one flat buffer cut evenly), `zero12-boundary` (no
matrix is cut; the others as `zero12`).

- *compute*, *state*: the fullest rank's Newton-Schulz and state bytes over the mean of all ranks. A
  matrix is never split, so both grow where ranks outnumber matrices; the bound that owners keep
  (ADR 0027) is on the larger share of each matrix. *state GB*: of the fullest rank.
- *sent*: MB a rank and step, mean and most. Beside it what other systems move for the same
  matrices, P elements of s = 2 bytes on N ranks, mean of a rank: DeepSpeed ZeRO-3 4sP(N-1)/N for
  each micro-batch, Megatron-FSDP sP(N-1)/N (`libmuon/plan/traffic.h` has their sources).
- *budget*, *workspace*: MiB of the rank that needs the most: the least memory that works with
  chunks of 256 MiB and tiles of 4 MiB, and of that the updates of two matrices and Newton-Schulz.
- *padding*: what the trainer's buffers hold beyond the parameters, in percent of these
  (`EnginePlan::padding_ratio`).
- *seconds*: of the slowest rank, when it pages all of its state: the largest of 400 TFLOP/s of
  Newton-Schulz, 3 GB/s of disk for reads and writes together, and 50 GB/s of network, which go
  beside each other.

| model | ranks | layout | compute | state | state GB | sent | most sent | ZeRO-3 | Megatron-FSDP )"
                              R"(| budget | workspace | padding % | seconds |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|
)";

}  // namespace

int main() {
  std::fputs(kHead, stdout);
  for (const std::string& model : test::real_model_names())
    for (const std::uint32_t ranks : {8u, 64u, 1024u}) {
      std::fprintf(stderr, "bench plans: %s on %u ranks\n", model.c_str(), ranks);
      for (const Policy policy : {Policy::zero3, Policy::zero12, Policy::zero12_boundary})
        print_row(model, ranks, policy);
    }
  return 0;
}
