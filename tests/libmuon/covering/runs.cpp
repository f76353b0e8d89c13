#include "tests/libmuon/covering/runs.h"

#include <algorithm>
#include <iterator>

#include "ebb/libmuon/spec/presets.h"
#include "tests/libmuon/support/training.h"
#include "tests/libmuon/support/world.h"

namespace ebb::test {
namespace {

using libmuon::AxisLayout;
using libmuon::EngineConfig;
using libmuon::HandIn;

constexpr std::uint32_t kExperts = 4;
constexpr std::string_view kPlaces = "expert";  // the axis on which they lie

// Both sides alike, over all ranks, `copies` times.
void cut(Run& run, Policy policy, std::uint32_t copies = 1) {
  run.copies = policy == Policy::replicated ? run.ranks : copies;
  Layout::Spec spec{.policy = policy, .mesh = {run.ranks / copies, copies}, .align_elems = 16};
  std::vector<Shape> shapes;
  for (const libmuon::ParamSpec& param : run.config.model.params) shapes.push_back(param.shape);
  add_lists(shapes, spec);
  run.config.partition.gradients = run.config.partition.weights = spec;
}

std::uint32_t two_if_even(std::uint32_t ranks) { return ranks % 2 == 0 ? 2 : 1; }

// Experts at `places` places, what is dense over all ranks but the copies.
void cut_experts(Run& run, Policy policy, std::uint32_t copies, std::uint32_t places) {
  run.copies = copies;
  const std::uint32_t data = run.ranks / copies / places;
  const Layout::Spec spec{.policy = policy, .align_elems = 16};
  auto& partition = run.config.partition;
  partition.axes = {{"copy", copies}, {"data", data}, {std::string(kPlaces), places}};
  const AxisLayout dense{spec, {"data", std::string(kPlaces)}, {"copy"}};
  const AxisLayout experts{spec, {"data"}, {"copy"}};
  partition.parts = {{"dense", dense, dense}, {"experts", experts, experts}};
  std::uint32_t expert = 0;
  for (libmuon::ParamSpec& param : run.config.model.params) {
    const bool of_one = param.name.starts_with("expert.");
    param.partition = of_one ? "experts" : "dense";
    if (of_one) param.at = {{std::string(kPlaces), expert++ / 2 * places / kExperts}};
  }
}

void weights_whole(Run& run) {
  auto& partition = run.config.partition;
  for (libmuon::AxisPartition& part : partition.parts)
    part.weights.layout.policy = Policy::replicated;
  if (!partition.parts.empty()) return;
  partition.weights = {.policy = Policy::replicated, .mesh = {run.ranks, 1}};
}

// Where things lie, and how gradients come.
std::vector<FactorOfRuns> factors_of_layout() {
  return {
      {"ranks",
       {{"1 rank", [](Run& run) { run.ranks = 1; }},
        {"2 ranks", [](Run& run) { run.ranks = 2; }},
        {"3 ranks", [](Run& run) { run.ranks = 3; }},
        {"4 ranks", [](Run& run) { run.ranks = 4; }},
        {"8 ranks", [](Run& run) { run.ranks = 8; }}}},
      {"partition",
       {{"replicated", [](Run& run) { cut(run, Policy::replicated); }},
        {"zero12", [](Run& run) { cut(run, Policy::zero12); }},
        {"boundary", [](Run& run) { cut(run, Policy::zero12_boundary); }},
        {"zero3", [](Run& run) { cut(run, Policy::zero3); }},
        {"rows", [](Run& run) { cut(run, Policy::rows); }},
        {"uneven rows", [](Run& run) { cut(run, Policy::uneven_rows); }},
        {"whole", [](Run& run) { cut(run, Policy::layer_wise); }},
        {"HSDP", [](Run& run) { cut(run, Policy::zero3, two_if_even(run.ranks)); }},
        {"experts", [](Run& run) { cut_experts(run, Policy::zero3, 1, std::min(run.ranks, 4u)); }},
        {"experts twice",
         [](Run& run) {
           const std::uint32_t copies = two_if_even(run.ranks);
           cut_experts(run, Policy::rows, copies, two_if_even(run.ranks / copies));
         }}}},
      {"weights", {{"weights alike", [](Run&) {}}, {"weights whole", weights_whole}}},
      {"placement",
       {{"owner", [](Run& run) { run.config.partition.placement = libmuon::Placement::owner; }},
        {"shard", [](Run& run) { run.config.partition.placement = libmuon::Placement::shard; }}}},
      {"gradients",
       {{"reduced", [](Run& run) { run.config.partition.hand_in = HandIn::reduced; }},
        {"added", [](Run& run) { run.config.partition.hand_in = HandIn::added; }},
        {"in parts", [](Run& run) { run.config.partition.hand_in = HandIn::partial; }},
        {"in parts, sums kept",
         [](Run& run) {
           run.config.partition.hand_in = HandIn::partial;
           run.config.partial_sums = libmuon::PartialSums::kept;
         }}}},
      {"ranks are",
       {{"threads", [](Run& run) { run.ranks_are = RanksAre::threads; }},
        {"sockets", [](Run& run) { run.ranks_are = RanksAre::sockets; }},
        {"MPI", [](Run& run) { run.ranks_are = RanksAre::mpi; }}}},
  };
}

// How much of it is at hand at a time, and in which form.
std::vector<FactorOfRuns> factors_of_sizes() {
  return {
      {"budget",
       {{"all in memory", [](Run& run) { run.budget = Budget::all; }},
        {"a quarter", [](Run& run) { run.budget = Budget::quarter; }},
        {"the least", [](Run& run) { run.budget = Budget::least; }}}},
      {"tiles",
       {{"tiles of 64 KiB", [](Run& run) { run.config.tile_bytes = 65536; }},
        {"of 16 KiB", [](Run& run) { run.config.tile_bytes = 16384; }},
        {"of all", [](Run& run) { run.config.tile_bytes = 1u << 20; }},
        {"of 4 KiB", [](Run& run) { run.config.tile_bytes = 4096; }}}},
      {"chunks",
       {{"one chunk", [](Run& run) { run.config.chunk_bytes = 256u << 20; }},
        {"chunks of a few matrices", [](Run& run) { run.config.chunk_bytes = 30000; }},
        {"of a part of one", [](Run& run) { run.config.chunk_bytes = 5000; }},
        {"of 1", [](Run& run) { run.config.chunk_bytes = 1; }}}},
      {"early",
       {{"no early room", [](Run&) {}},
        {"early room", [](Run& run) { run.config.early_gradient_bytes = 8192; }}}},
      {"updates",
       {{"whole updates", [](Run&) {}},
        {"streamed", [](Run& run) { run.config.stream_above_bytes = 0; }},
        // Of the widest, in two strips of twice the width and a rest.
        {"streamed in wide strips", [](Run& run) { run.config.stream_above_bytes = 27000; }}}},
      {"momentum",
       {{"momentum in fp32", [](Run&) {}},
        {"in bf16", [](Run& run) { run.config.dtypes["momentum_buffer"] = DType::bf16; }},
        {"in int8", [](Run& run) { run.config.dtypes["momentum_buffer"] = DType::i8; }}}},
      {"threads",
       {{"1 thread", [](Run& run) { run.config.threads = 1; }},
        {"2 threads", [](Run& run) { run.config.threads = 2; }},
        {"5 threads", [](Run& run) { run.config.threads = 5; }}}},
  };
}

std::vector<FactorOfRuns> make_factors() {
  std::vector<FactorOfRuns> factors = factors_of_layout();
  std::ranges::move(factors_of_sizes(), std::back_inserter(factors));
  return factors;
}

Choice choice_named(std::string_view factor, std::string_view value) {
  const auto& all = factors_of_runs();
  const auto of = std::ranges::find(all, factor, &FactorOfRuns::name);
  const auto which = std::ranges::find(of->values, value, &FactorOfRuns::Value::name);
  return {static_cast<std::uint32_t>(of - all.begin()),
          static_cast<std::uint32_t>(which - of->values.begin())};
}

// Room for tiles beside what the ranks need anyway.
void set_budget(Run& run) {
  EngineConfig& config = run.config;
  config.budget_bytes = ~std::uint64_t{0};
  if (run.budget == Budget::all) return;
  std::uint64_t least = 0, state = 0;
  for (std::uint32_t rank = 0; rank < run.ranks; ++rank) {
    const auto plan = libmuon::Engine::plan(config, Rank{rank});
    if (!plan) return;  // open says why
    least = std::max(least, plan->least_budget_bytes);
    state = std::max(state, plan->tiles * config.tile_bytes);
  }
  config.budget_bytes = least + (run.budget == Budget::quarter ? state / 4 : 0);
}

}  // namespace

const std::vector<FactorOfRuns>& factors_of_runs() {
  static const std::vector<FactorOfRuns> all = make_factors();
  return all;
}

Factors factors(Mpi mpi) {
  Factors all;
  for (const FactorOfRuns& factor : factors_of_runs())
    all.sizes.push_back(static_cast<std::uint32_t>(factor.values.size()));
  const Choice over_mpi = choice_named("ranks are", "MPI");  // the last value
  if (mpi == Mpi::without)
    --all.sizes[over_mpi.factor];
  else
    for (const std::string_view ranks : {"1 rank", "8 ranks"})
      all.never.push_back({over_mpi, choice_named("ranks", ranks)});
  for (const std::string_view parts : {"in parts", "in parts, sums kept"})
    for (const auto& [factor, value] :
         {std::pair("early", "early room"), std::pair("updates", "streamed"),
          std::pair("updates", "streamed in wide strips")})
      all.never.push_back({choice_named("gradients", parts), choice_named(factor, value)});
  for (const auto& [factor, value] :
       {std::pair("updates", "streamed"), std::pair("updates", "streamed in wide strips"),
        std::pair("momentum", "in int8")})
    all.never.push_back({choice_named("placement", "shard"), choice_named(factor, value)});
  return all;
}

Run run_of(const Row& row) {
  Run run{.config = {.model = model_of_runs()}};
  run.config.bf16 = libmuon::Bf16::emulated;  // not what a probe finds: bits depend on it
  for (std::size_t i = 0; i < row.size(); ++i) factors_of_runs()[i].values[row[i]].set(run);
  set_budget(run);
  return run;
}

Row paged(Row row) {
  for (const Choice choice :
       {choice_named("budget", "the least"), choice_named("tiles", "of 4 KiB")})
    row[choice.factor] = choice.value;
  return row;
}

Row of_the_same_state(Row row, const Row& other) {
  const Choice momentum = choice_named("momentum", "in int8"),
               owner = choice_named("placement", "owner");
  row[momentum.factor] = other[momentum.factor];
  if (row[momentum.factor] == momentum.value) row[owner.factor] = owner.value;
  return row;
}

std::string text_of(const Row& row) {
  std::string text;
  for (std::size_t i = 0; i < row.size(); ++i)
    text += std::string(i == 0 ? "" : ", ") + std::string(factors_of_runs()[i].values[row[i]].name);
  return text;
}

libmuon::ModelSpec model_of_runs() {
  auto keller = libmuon::MuonSpec::keller();
  keller.weight_decay = 0.1;
  auto gram = libmuon::preset("gram");
  EBB_CHECK(gram.has_value());
  libmuon::ModelSpec model;
  model.groups = {keller, libmuon::AdamSpec{.lr = 1e-2, .weight_decay = 0.01}, *gram,
                  libmuon::AdamSpec{.lr = 3e-3, .beta1 = 0.8, .beta2 = 0.99, .eps = 1e-8}};
  model.params = {{"emb", {37, 24}, 1},    {"norm", {24}, 3},         {"qkv", {72, 24}, 0},
                  {"proj", {24, 24}, 2},   {"scale", {}, 1},          {"stack", {3, 20, 16}, 2},
                  {"down", {24, 96}, 0},   {"conv", {3, 5, 2, 2}, 3}, {"row", {1, 24}, 0},
                  {"prime", {31, 13}, 0},  {"head", {37, 24}, 1},     {"long", {1100, 3}, 2},
                  {"broad", {3, 2304}, 2}, {"thin", {1, 1300}, 2}};
  for (std::uint32_t expert = 0; expert < kExperts; ++expert) {
    model.params.push_back({compose("expert.{}.up", expert), {40, 24}, 2});
    model.params.push_back({compose("expert.{}.bias", expert), {17}, 1});
  }
  for (libmuon::ParamSpec& param : model.params)
    if (param.name == "emb" || param.name == "down" || param.name == "stack" ||
        param.name == "expert.1.up")
      param.gradient = param.weight = DType::bf16;
  return model;
}

}  // namespace ebb::test
