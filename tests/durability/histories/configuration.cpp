#include "tests/durability/histories/configuration.h"

#include <algorithm>

#include "tests/libmuon/support/world.h"

namespace ebb::test {
namespace {

using libmuon::AxisLayout;
using libmuon::EngineConfig;
using libmuon::ModelSpec;

Layout::Spec layout_of(const ModelSpec& model, Policy policy, const Start& start,
                       std::uint32_t copies) {
  Layout::Spec spec{.policy = policy, .mesh = {start.ranks / copies, copies}, .align_elems = 16};
  std::vector<Shape> shapes;
  for (const libmuon::ParamSpec& param : model.params) shapes.push_back(param.shape);
  add_lists(shapes, spec);
  return spec;
}

// Two by two ranks: linear layers cut over "tensor" by columns or rows, the others copied there.
void add_tensor_axis(const Start& start, EngineConfig& config) {
  const Layout::Spec in{.policy = start.gradients}, out{.policy = start.weights};
  config.partition.axes = {{"data", 2}, {"tensor", 2}};
  config.partition.parts = {
      {"linear", AxisLayout{in, {"data"}}, AxisLayout{out, {"data"}}},
      {"others", AxisLayout{in, {"data"}, {"tensor"}}, AxisLayout{out, {"data"}, {"tensor"}}}};
  for (libmuon::ParamSpec& param : config.model.params) {
    const bool by_rows = param.name == "up" || param.name == "qkv" || param.name == "tall";
    const bool by_columns = param.name == "down" || param.name == "wide";
    param.partition = by_rows || by_columns ? "linear" : "others";
    if (by_rows || by_columns) param.cuts = {{"tensor", by_rows ? 0u : 1u}};
  }
}

Result<> set_budget(const Start& start, EngineConfig& config) {
  config.budget_bytes = std::uint64_t{1} << 34;
  std::uint64_t least = 0;
  for (std::uint32_t rank = 0; rank < start.ranks; ++rank) {
    EBB_TRY_ASSIGN(const auto plan, libmuon::Engine::plan(config, Rank{rank}));
    least = std::max(least, plan.least_budget_bytes);
  }
  if (start.budget == 0) return {};
  config.budget_bytes = static_cast<std::uint64_t>(static_cast<double>(least) * start.budget);
  for (std::uint32_t rank = 0; rank < start.ranks; ++rank) {
    EBB_TRY_ASSIGN(const auto plan, libmuon::Engine::plan(config, Rank{rank}));
    if (plan.memory_bytes > config.budget_bytes)
      return Error{Code::no_memory, compose("{} bytes are planned in a budget of {}",
                                            plan.memory_bytes, config.budget_bytes)};
  }
  return {};
}

}  // namespace

ModelSpec model_of(const Meaning& meaning, const Start& start) {
  libmuon::MuonSpec muon = meaning.muon;
  libmuon::MuonSpec heads = muon;
  heads.split = {libmuon::Split::Kind::heads, {4}};
  muon.out = meaning.out;
  ModelSpec model;
  model.groups = {muon, libmuon::AdamSpec{.lr = 1e-2, .weight_decay = 0.01}, heads};
  model.params = {{"emb", {37, 24}, kAdamGroup},
                  {"qkv", {112, 24}, 2},
                  {"up", {96, 24}, 0},
                  {"down", {24, 96}, 0},
                  {"norm", {24}, kAdamGroup},
                  {"prime", {31, 13}, 0},
                  {"stack", {3, 20, 16}, 0},
                  {"tall", {meaning.tall, 16}, 0},
                  {"wide", {12, meaning.wide}, 0},
                  {"square", {33, 33}, 0},
                  {"one", {1}, kAdamGroup}};
  for (libmuon::ParamSpec& param : model.params) {
    param.gradient = start.gradient;
    param.weight = start.weight;
  }
  return model;
}

Result<EngineConfig> config_of(const Meaning& meaning, const Start& start) {
  EngineConfig config;
  config.model = model_of(meaning, start);
  auto& partition = config.partition;
  partition.placement = start.placement;
  partition.hand_in = start.hand_in;
  if (start.tensor_axis) {
    add_tensor_axis(start, config);
  } else {
    partition.gradients = layout_of(config.model, start.gradients, start, start.gradient_copies);
    partition.weights = layout_of(config.model, start.weights, start, start.weight_copies);
  }
  config.partial_sums = start.sums;
  config.tile_bytes = start.tile_bytes;
  config.chunk_bytes = start.chunk_bytes;
  config.early_gradient_bytes = start.early_bytes;
  config.stream_above_bytes = start.stream_above;
  config.threads = start.threads;
  config.slots = start.slots;
  config.bf16 = libmuon::Bf16::emulated;  // not what a probe finds: bits depend on it
  config.dtypes["momentum_buffer"] = meaning.momentum;
  if (start.masters == libmuon::Masters::halves) config.dtypes["master"] = DType::u16;
  if (start.masters == libmuon::Masters::bound) config.dtypes["master"] = std::nullopt;
  EBB_TRY(set_budget(start, config));
  return config;
}

Start plain_start(std::uint64_t until) { return {.until = until}; }

}  // namespace ebb::test
