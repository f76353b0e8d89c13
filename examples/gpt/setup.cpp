#include "examples/gpt/setup.h"

#include <algorithm>
#include <cmath>

#include "ebb/formats/core/units.h"
#include "examples/gpt/layers.h"
#include "examples/gpt/reduce.h"
#include "tools/cli/text.h"

namespace ebb::gpt {
namespace {

using libmuon::EngineConfig;
using libmuon::EnginePlan;

// Code, libraries, thread stacks, the I/O queue and what malloc keeps: measured, rounded up.
constexpr std::uint64_t kProgramBytes = 96 * formats::MiB;

std::uint32_t group_of(Optimizer optimizer) {
  switch (optimizer) {
    case Optimizer::muon:
      return kMatrixGroup;
    case Optimizer::adamw:
      return kAdamGroup;
    case Optimizer::frozen:
      break;
  }
  return kFrozenGroup;
}

libmuon::ModelSpec model_spec(const Model& model, const libmuon::GroupSpec& matrices) {
  libmuon::AdamSpec adam;
  adam.lr = kAdamRate;
  libmuon::ModelSpec spec;
  spec.groups = {matrices, adam};
  for (const Parameter& parameter : model.parameters) {
    spec.params.push_back({parameter.name, parameter.shape, group_of(parameter.optimizer)});
    if (parameter.optimizer == Optimizer::frozen && spec.groups.size() == kFrozenGroup)
      spec.groups.push_back(libmuon::AdamSpec{.lr = 0});
  }
  return spec;
}

// How much of the wanted memory for state one rank gets; `unlimited` is its plan with everything in
// memory.
std::uint64_t share_of_budget(const Budget& budget, const EnginePlan& unlimited,
                              std::uint64_t all_state) {
  switch (budget.kind) {
    case Budget::Kind::all:
      return unlimited.frame_bytes;
    case Budget::Kind::quarter:
      return unlimited.state_bytes / 4;
    case Budget::Kind::bytes:
      break;
  }
  const double share = static_cast<double>(unlimited.state_bytes) / static_cast<double>(all_state);
  return static_cast<std::uint64_t>(static_cast<double>(budget.bytes) * share);
}

// What one rank needs of it at least.
std::uint64_t least_share(const EnginePlan& unlimited) {
  return unlimited.least_budget_bytes - (unlimited.memory_bytes - unlimited.frame_bytes);
}

// The smallest that gives every rank its share, all ranks together, as it is typed: rounded up.
std::string least_budget_text(const std::vector<EnginePlan>& unlimited, std::uint64_t all_state) {
  double least = 0;
  for (const EnginePlan& plan : unlimited)
    if (plan.state_bytes > 0)
      least =
          std::max(least, static_cast<double>(least_share(plan)) * static_cast<double>(all_state) /
                              static_cast<double>(plan.state_bytes));
  const double kib = std::ceil(least / formats::KiB);
  if (kib < formats::KiB) return compose("{}KiB", static_cast<std::uint64_t>(kib));
  const auto tenths = static_cast<std::uint64_t>(std::ceil(10 * kib / formats::KiB));
  return compose("{}.{}MiB", tenths / 10, tenths % 10);
}

Error too_small(const Budget& budget, const std::string& least, std::uint32_t ranks) {
  const std::string asked = budget.kind == Budget::Kind::quarter ? std::string("quarter")
                                                                 : tools::bytes_text(budget.bytes);
  return {Code::no_memory,
          compose("--budget {} is too small: {} is the smallest for {} together", asked, least,
                  tools::plural(ranks, "rank")),
          compose("--budget {}; a smaller --tile needs less", least)};
}

}  // namespace

double schedule(std::uint64_t step, std::uint64_t end) {
  constexpr double kWarm = 10, kFull = 0.4, kLeast = 0.05;
  const auto s = static_cast<double>(step), e = static_cast<double>(end);
  const double up = std::min(1.0, (s + 1) / kWarm);
  const double down = 1 - (1 - kLeast) * std::clamp((s - kFull * e) / (e - kFull * e), 0.0, 1.0);
  return up * down;
}

Result<std::vector<EngineConfig>> engine_configs(const Settings& settings, const Model& model,
                                                 libswap::Trace* trace) {
  EngineConfig common;
  common.model = model_spec(model, settings.matrices);
  const formats::Mesh mesh{.shard_world = settings.ranks, .replicas = 1};
  common.partition.gradients = {.policy = Policy::zero12, .mesh = mesh};
  common.partition.weights = {.policy = Policy::replicated, .mesh = mesh};
  common.partition.placement = settings.placement;
  common.tile_bytes = settings.tile_bytes;
  common.stream_above_bytes = settings.stream_above_bytes;
  // Several chunks even of a small model, and room for what backward finishes first.
  common.chunk_bytes = common.early_gradient_bytes = 1u << 20;
  common.dtypes = {{"momentum_buffer", settings.momentum}};
  common.bf16 = settings.bf16;
  common.dropped = settings.dropped;
  common.trace = trace;
  common.budget_bytes = ~std::uint64_t{0};

  std::vector<EnginePlan> unlimited;
  std::uint64_t all_state = 0;
  for (std::uint32_t rank = 0; rank < settings.ranks; ++rank) {
    EBB_TRY_ASSIGN(EnginePlan plan, libmuon::Engine::plan(common, Rank{rank}));
    all_state += plan.state_bytes;
    unlimited.push_back(plan);
  }
  std::vector<EngineConfig> configs(settings.ranks, common);
  for (std::uint32_t rank = 0; rank < settings.ranks; ++rank) {
    const std::uint64_t share = share_of_budget(settings.budget, unlimited[rank], all_state);
    if (share < least_share(unlimited[rank]))
      return too_small(settings.budget, least_budget_text(unlimited, all_state), settings.ranks);
    configs[rank].budget_bytes = share + unlimited[rank].memory_bytes - unlimited[rank].frame_bytes;
  }
  return configs;
}

std::uint64_t Predicted::memory_total() const {
  std::uint64_t total = 0;
  for (const auto& line : memory) total += line.second;
  return total;
}

Result<Predicted> predict(const std::vector<EngineConfig>& engines, const Model& model,
                          const Corpus& corpus, std::uint32_t processes) {
  Predicted all;
  const auto world = static_cast<std::uint32_t>(engines.size());
  const std::uint64_t vector_bytes = model.elems * sizeof(float);
  std::uint64_t workspace = 0, exchange = 0;
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    EBB_TRY_ASSIGN(const EnginePlan plan, libmuon::Engine::plan(engines[rank], Rank{rank}));
    all.state_bytes += plan.state_bytes;
    all.disk_bytes += plan.disk_bytes;
    all.step_read_bytes += plan.step_read_bytes;
    all.step_written_bytes += plan.step_written_bytes;
    all.step_sent_bytes += plan.step_sent_bytes;
    all.frame_bytes += plan.frame_bytes;
    workspace += plan.workspace_bytes;
    exchange += plan.staging_bytes;
    exchange += GradientMean::bytes(model.elems, Rank{rank}, world);
  }
  all.memory = {
      {"state: frames and resident tiles", all.frame_bytes},
      {"engine workspace", workspace},
      {"gradients, one a sequence", kBatch * vector_bytes},
      {"gradients and weights on their way", exchange},
      {"weights, a copy a rank", world * vector_bytes},
      {"activations, one sequence a rank", world * Activations<float>::bytes(model)},
      {"text", processes * (corpus.train.size() + corpus.held_out.size())},
      {"program, libraries and their own", processes * kProgramBytes},
  };
  return all;
}

}  // namespace ebb::gpt
