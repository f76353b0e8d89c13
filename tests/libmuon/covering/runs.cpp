#include "tests/libmuon/covering/runs.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "ebb/libmuon/spec/presets.h"
#include "tests/libmuon/support/late_accelerator.h"

namespace ebb::test {
namespace {

// Factors by their values 0 that say what numbers a run ends with, and what its store holds of
// them.
constexpr std::array<std::string_view, 6> kMathematics = {
    "momentum in fp32",   "no decay",         "no second moments",
    "all have gradients", "products in fp32", "weights are the engine's"};
constexpr std::string_view kMasters = "weights handed out";

// Room for tiles beside what the ranks need anyway.
void set_budget(Run& run) {
  libmuon::EngineConfig& config = run.config;
  config.budget_bytes = ~std::uint64_t{0};
  if (run.budget == Budget::all) return;
  std::uint64_t least = 0, state = 0;
  for (std::uint32_t rank = 0; rank < run.ranks; ++rank) {
    const auto plan = libmuon::Engine::plan(config, Rank{rank}, run.wire());
    if (!plan) return;  // open says why
    least = std::max(least, plan->least_budget_bytes);
    state = std::max(state, plan->tiles * config.tile_bytes);
  }
  config.budget_bytes = least + (run.budget == Budget::quarter ? state / 4 : 0);
}

std::vector<FactorOfRuns> make_factors() {
  std::vector<FactorOfRuns> factors = factors_of_layout();
  std::ranges::move(factors_of_sizes(), std::back_inserter(factors));
  std::ranges::move(factors_of_options(), std::back_inserter(factors));
  return factors;
}

}  // namespace

libmuon::Side Run::wire() const {
  return computes == Computes::device && ranks_are == RanksAre::threads ? takes
                                                                        : libmuon::Side::host;
}

const std::vector<FactorOfRuns>& factors_of_runs() {
  static const std::vector<FactorOfRuns> all = make_factors();
  return all;
}

Choice choice_named(std::string_view value) {
  const auto& all = factors_of_runs();
  for (std::uint32_t factor = 0; factor < all.size(); ++factor) {
    const auto& values = all[factor].values;
    const auto at = std::ranges::find(values, value, &FactorOfRuns::Value::name);
    if (at != values.end()) return {factor, static_cast<std::uint32_t>(at - values.begin())};
  }
  EBB_CHECK(false && "a value of that name");
  return {};
}

Factors factors(Mpi mpi) {
  Factors all;
  for (const FactorOfRuns& factor : factors_of_runs())
    all.sizes.push_back(static_cast<std::uint32_t>(factor.values.size()));
  if (mpi == Mpi::without) --all.sizes[choice_named("over MPI").factor];  // the last value
  const auto there = [&](Choice choice) { return choice.value < all.sizes[choice.factor]; };
  const auto add = [&](const Pairs& pairs) {
    for (const std::string_view name : pairs.ones)
      for (const std::string_view other_name : pairs.others) {
        const Choice one = choice_named(name), other = choice_named(other_name);
        if (there(one) && there(other)) all.never.push_back({one, other});
      }
  };
  for (const Refused& each : refused()) add(each.pairs);
  for (const NotHere& each : not_here()) add(each.pairs);
  return all;
}

Run run_of(const Row& row) {
  Run run{.config = {.model = model_of_runs()}};
  run.config.bf16 = libmuon::Bf16::emulated;  // not what a probe finds: bits depend on it
  for (std::size_t i = 0; i < row.size(); ++i) factors_of_runs()[i].values[row[i]].set(run);
  return run;
}

std::shared_ptr<libmuon::Accelerator> late_accelerator() {
  return std::make_shared<LateAccelerator>(14, 50);
}

void make_ready(Run& run, const MakeAccelerator& make) {
  if (run.computes == Computes::device) run.accelerator = make();
  run.config.accelerator = run.accelerator.get();
  set_budget(run);
}

std::string text_of(const Row& row) {
  std::string text;
  for (std::size_t i = 0; i < row.size(); ++i)
    text += std::string(i == 0 ? "" : ", ") + std::string(factors_of_runs()[i].values[row[i]].name);
  return text;
}

Row with(Row row, Choice choice) {
  row[choice.factor] = choice.value;
  static const Factors all = factors(Mpi::with);
  for (const Never& never : all.never)
    for (const auto& [one, other] : {std::pair(never.one, never.other), {never.other, never.one}})
      if (one == choice && row[other.factor] == other.value) row[other.factor] = 0;
  return row;
}

Row paged(Row row) {
  return with(with(std::move(row), choice_named("the least memory")),
              choice_named("tiles of 4 KiB"));
}

Row plain_of(const Row& row) {
  Row plain(row.size());
  for (const std::string_view name : kMathematics) {
    const std::uint32_t factor = choice_named(name).factor;
    plain[factor] = row[factor];
  }
  return plain;
}

Row of_the_same_state(Row row, const Row& other) {
  for (const std::string_view name : kMathematics) {
    const std::uint32_t factor = choice_named(name).factor;
    row = with(std::move(row), {factor, other[factor]});
  }
  const std::uint32_t masters = choice_named(kMasters).factor;
  return with(std::move(row), {masters, other[masters]});
}

libmuon::ModelSpec model_of_runs() {
  constexpr std::uint32_t kExperts = 4;
  auto gram = libmuon::preset("gram");
  EBB_CHECK(gram.has_value());
  gram->weight_decay = 0;
  auto heads = libmuon::preset("torch");  // whose updates travel in bf16
  EBB_CHECK(heads.has_value());
  heads->weight_decay = 0;
  heads->split = {libmuon::Split::Kind::heads, {4}};
  libmuon::ModelSpec model;
  model.groups = {libmuon::MuonSpec::keller(), libmuon::AdamSpec{.lr = 1e-2, .weight_decay = 0.01},
                  *gram, libmuon::AdamSpec{.lr = 3e-3, .beta1 = 0.8, .beta2 = 0.99, .eps = 1e-8},
                  *heads};
  model.params = {{"emb", {37, 24}, 1},    {"norm", {24}, 3},         {"qkv", {72, 24}, 0},
                  {"proj", {24, 24}, 2},   {"scale", {}, 1},          {"stack", {3, 20, 16}, 2},
                  {"down", {24, 96}, 0},   {"conv", {3, 5, 2, 2}, 3}, {"row", {1, 24}, 0},
                  {"prime", {31, 13}, 0},  {"head", {37, 24}, 1},     {"long", {1100, 3}, 2},
                  {"broad", {3, 2304}, 2}, {"thin", {1, 1300}, 2},    {"pile", {3, 12, 26}, 0},
                  {"odd", {3, 1031}, 2},   {"heads", {24, 37}, 4}};
  for (std::uint32_t expert = 0; expert < kExperts; ++expert) {
    model.params.push_back({compose("expert.{}.up", expert), {40, 24}, 2});
    model.params.push_back({compose("expert.{}.bias", expert), {17}, 1});
  }
  return model;
}

}  // namespace ebb::test
