// Parameters that have no gradient in a step: what stays as it is, what decays, what travels, and
// what ranks that do not say the same are told.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "ebb/libswap/queue/io_queue.h"
#include "tests/libmuon/support/failing_world.h"
#include "tests/libmuon/support/said_gradients.h"

namespace ebb::test {
namespace {

using libmuon::Communicator;
using libmuon::EngineConfig;
using libmuon::WithoutGradient;

struct Trained {
  std::map<std::string, std::vector<float>> tensors;
  std::vector<double> norms;
  std::uint64_t sent = 0, read = 0, written = 0;  // of all ranks, in the last step
};

// Where a parameter's weights are bound.
struct Bound {
  FlatRange held;
  std::vector<float> weights;
};

// Opens what lies in `directory`, steps to `last`, commits. Bound weights are the masters.
Trained run(const EngineConfig& config, std::uint64_t last, const Script& script,
            const std::filesystem::path& directory, const libmuon::StepArgs& args = {}) {
  Trained trained;
  std::array<libmuon::EngineStats, 4> stats, before;
  std::array<std::vector<Bound>, 4> bound;
  World world(disk(), directory, libmuon::world_of(config.partition));
  expect_well(world.run([&](Communicator& ranks) -> Result<> {
    const std::uint32_t me = index_of(ranks.rank());
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(world, ranks, config));
    for (std::uint64_t step = rank.engine().step_count() + 1; step <= last; ++step) {
      before[me] = rank.engine().stats();
      EBB_TRY(hand_in(rank, step, script));
      EBB_TRY_ASSIGN(const auto result, rank.step(args));
      EXPECT_FALSE(result.skipped);
      if (me == 0) trained.norms.push_back(result.norm);
      for (std::uint32_t param = 0; param < config.model.params.size(); ++param)
        EBB_TRY(rank.engine().weights_ready(param));
    }
    stats[me] = rank.engine().stats();
    for (std::uint32_t param = 0; param < config.model.params.size(); ++param)
      bound[me].push_back(
          {rank.engine().state_plan().weights().held(param, ranks.rank()), rank.weights()[param]});
    EBB_TRY(rank.commit());
    return {};
  }));
  for (std::size_t rank = 0; rank < stats.size(); ++rank) {
    trained.sent += stats[rank].sent_bytes - before[rank].sent_bytes;
    trained.read += stats[rank].read_bytes - before[rank].read_bytes;
    trained.written += stats[rank].written_bytes - before[rank].written_bytes;
  }
  trained.tensors = tensors_of(directory);
  for (const auto& rank : bound)
    for (std::size_t param = 0; param < rank.size(); ++param) {
      const auto& master = trained.tensors.at(config.model.params[param].name + " master");
      const auto first = master.begin() + static_cast<std::ptrdiff_t>(rank[param].held.first);
      EXPECT_TRUE(std::ranges::equal(rank[param].weights, std::span(first, rank[param].held.count)))
          << config.model.params[param].name;
    }
  return trained;
}

Trained run(const EngineConfig& config, std::uint64_t last, const Script& script,
            const libmuon::StepArgs& args = {}) {
  const TempDir directory;
  return run(config, last, script, directory.path(), args);
}

// Of the tensors of parameters for which `which` holds.
void expect_same(const Trained& a, const Trained& b, const EngineConfig& config,
                 const std::function<bool(std::uint32_t)>& which, const std::string& what) {
  for (std::uint32_t param = 0; param < config.model.params.size(); ++param) {
    if (!which(param)) continue;
    const std::string prefix = config.model.params[param].name + " ";
    for (const auto& [name, values] : a.tensors)
      if (name.starts_with(prefix)) {
        EXPECT_TRUE(values == b.tensors.at(name)) << what << ": " << name;
      }
  }
}

std::vector<std::pair<std::string, EngineConfig>> cases() {
  std::vector<std::pair<std::string, EngineConfig>> all;
  const auto add = [&](Training setup) {
    for (const auto placement : kPlacements) {
      setup.placement = placement;
      all.emplace_back(compose("{}, case {}", name_of(placement), all.size() / 2),
                       config_of(setup, setup.model));
    }
  };
  add({.ranks = 1, .budget_bytes = kLittle});
  add({.ranks = 2, .gradients = Policy::replicated, .chunk_bytes = 6000});
  add({.ranks = 3, .chunk_bytes = 20000, .budget_bytes = kLittle});
  add({.ranks = 3,
       .gradients = Policy::zero3,
       .weights = Policy::zero3,
       .tile_bytes = 8192,
       .budget_bytes = kHalf});
  add({.ranks = 4, .gradients = Policy::uneven_rows, .weights = Policy::layer_wise});
  add({.ranks = 2,
       .gradients = Policy::layer_wise,
       .weights = Policy::layer_wise,
       .chunk_bytes = 6000,
       .early_gradient_bytes = 1u << 20,
       .budget_bytes = kLittle});
  add({.ranks = 4,
       .gradients = Policy::zero3,
       .chunk_bytes = 9000,
       .early_gradient_bytes = 9000,
       .threads = 2});
  return all;
}

// In step 3. Each parameter goes its own way, so one that takes no part in a step is where it would
// be had that step not been: its own count of steps included.
TEST(AbsentGradients, UntouchedParametersDoNotTakePartInTheStep) {
  const auto left_out = [](std::uint32_t param, std::uint64_t step) -> Said {
    if (in_some(param) && step == 3) return {.noise = {}, .none = WithoutGradient::untouched};
    return always(param, step);
  };
  const auto without_that_step = [](std::uint32_t param, std::uint64_t step) -> Said {
    return always(param, in_some(param) && step >= 3 ? step + 1 : step);
  };
  for (const auto& [what, config] : cases()) {
    const Trained two = run(config, 2, always), three = run(config, 3, left_out);
    expect_same(three, two, config, in_some, what + ", step 3");
    const Trained five = run(config, 5, left_out);
    expect_same(five, run(config, 4, without_that_step), config, in_some, what);
    expect_same(
        five, run(config, 5, always), config, [](std::uint32_t param) { return !in_some(param); },
        what + ", the others");
  }
}

// Nor do they count in the norm, by which the others are clipped.
TEST(AbsentGradients, AreThoseOfZerosInTheNormAndWhereTheyAreTakenAsZero) {
  const auto with = [](const Said& said) {
    return [said](std::uint32_t param, std::uint64_t step) -> Said {
      return in_some(param) && step > 1 && step < 4 ? said : always(param, step);
    };
  };
  for (const auto& [what, config] : cases()) {
    const libmuon::StepArgs args{.inv_scale = 0.5, .max_norm = 3};
    const Trained zeros = run(config, 4, with({}), args);
    const Trained zero = run(config, 4, with({.noise = {}, .none = WithoutGradient::zero}), args);
    EXPECT_TRUE(zero.tensors == zeros.tensors) << what;
    EXPECT_EQ(zero.norms, zeros.norms) << what;
    const Trained untouched =
        run(config, 3, with({.noise = {}, .none = WithoutGradient::untouched}), args);
    EXPECT_EQ(untouched.norms[1], zeros.norms[1]) << what;
    EXPECT_EQ(untouched.norms[2], zeros.norms[2]) << what;
  }
}

// Some of what one batch of Newton-Schulz would take.
TEST(AbsentGradients, BesideOthersOfTheirShapeAreNotTakenForThem) {
  Training setup{.ranks = 2};
  setup.model.params.clear();
  for (int i = 0; i < 12; ++i) setup.model.params.push_back({compose("w.{}", i), {8, 8}, 0});
  const auto config = config_of(setup, setup.model);
  const auto script = [](std::uint32_t param, std::uint64_t step) -> Said {
    if (in_some(param) && step == 2) return {.noise = {}, .none = WithoutGradient::untouched};
    return always(param, step);
  };
  const Trained two = run(config, 2, script);
  expect_same(two, run(config, 1, always), config, in_some, "untouched");
  expect_same(
      two, run(config, 2, always), config, [](std::uint32_t param) { return !in_some(param); },
      "the others");
}

// (g + w) x (numel - held by the owner) of each matrix, in fp32; AdamW's ranges are where they are
// used.
std::uint64_t bytes_of_matrices(const EngineConfig& config, bool in, bool out) {
  std::uint64_t bytes = 0;
  for (std::uint32_t rank = 0; rank < libmuon::world_of(config.partition); ++rank) {
    const auto plan = libmuon::StatePlan::make(config.model, config.partition, config.tile_bytes,
                                               Rank{rank}, config.chunk_bytes);
    EXPECT_TRUE(plan);
    for (const std::uint32_t param : kSome) {
      if (!(*plan).muon(param) || (*plan).own_ranges(param).empty()) continue;
      const std::uint64_t all = (*plan).own_ranges(param).front().count;
      if (in) bytes += 4 * (all - (*plan).gradients().local_elems(param, Rank{rank}));
      if (out) bytes += 4 * (all - (*plan).weights().local_elems(param, Rank{rank}));
    }
  }
  return bytes;
}

TEST(AbsentGradients, DoNotTravel) {
  const Training setup{
      .ranks = 3, .gradients = Policy::zero3, .weights = Policy::zero3, .chunk_bytes = 9000};
  for (const std::uint64_t room : {std::uint64_t{0}, std::uint64_t{1} << 20}) {
    Training one = setup;
    one.early_gradient_bytes = room;
    const auto config = config_of(one, one.model);
    const auto sent = [&](std::optional<WithoutGradient> none) {
      return run(config, 2,
                 [&](std::uint32_t param, std::uint64_t step) -> Said {
                   if (!none || !in_some(param)) return always(param, step);
                   return {.noise = {}, .none = none};
                 })
          .sent;
    };
    const std::uint64_t all = sent({});
    EXPECT_EQ(all - sent(WithoutGradient::zero), bytes_of_matrices(config, true, false));
    EXPECT_EQ(all - sent(WithoutGradient::untouched), bytes_of_matrices(config, true, true));
  }
}

// A frozen majority costs no disk: what is paged is the tiles of what is trained.
TEST(AbsentGradients, TilesOfNothingElseAreNotPaged) {
  for (const std::uint64_t budget : {kLittle, std::uint64_t{20} * 4096}) {
    const Training setup{.ranks = 2, .budget_bytes = budget};
    const auto config = config_of(setup, setup.model);
    std::uint64_t paged = 0, resident = 0;
    for (const std::uint32_t rank : {0u, 1u}) {
      const auto plan = libmuon::StatePlan::make(config.model, config.partition, config.tile_bytes,
                                                 Rank{rank}, config.chunk_bytes);
      const auto engine = libmuon::Engine::plan(config, Rank{rank});
      ASSERT_TRUE(plan && engine);
      resident += (*engine).split.resident;
      for (const auto& tile : (*plan).tiles())
        paged += (*plan).spans(tile).front().param == 5 ? config.tile_bytes : 0;
    }
    const auto only = [](std::uint32_t trained) {
      return [trained](std::uint32_t param, std::uint64_t step) -> Said {
        if (param == trained || step < 3) return always(param, step);
        return {.noise = {}, .none = WithoutGradient::untouched};
      };
    };
    const Trained one = run(config, 5, only(5)), none = run(config, 5, only(99));
    EXPECT_EQ(none.read + none.written, 0u);
    if (resident == 0) {
      EXPECT_EQ(one.read, paged);
      EXPECT_EQ(one.written, paged);
    }
    EXPECT_LE(one.read, paged);
    expect_same(
        one, run(config, 5, always), config, [](std::uint32_t param) { return param == 5; },
        "what is trained");
    expect_same(
        one, run(config, 2, always), config, [](std::uint32_t param) { return param != 5; },
        "what is not");
  }
}

}  // namespace
}  // namespace ebb::test
