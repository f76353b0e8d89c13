// Masters in halves are read and written by name: the bound weights are one of the two.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <numeric>

#include "tests/libmuon/support/by_name.h"
#include "tests/libmuon/support/failing_world.h"
#include "tests/libmuon/support/in_halves.h"

namespace ebb::test {
namespace {

using libmuon::Communicator;
using libmuon::StateBuffer;

libmuon::EngineConfig halves_or_whole(bool halves) {
  Training setup{.ranks = 2, .gradients = Policy::zero3, .weights = Policy::zero3};
  setup.chunk_bytes = 20000;
  setup.budget_bytes = kLittle;
  if (halves) setup.dtypes = kHalves;
  return config_of(setup, with_bf16_weights(setup.model));
}

ByName all_masters(const libmuon::Engine& engine) {
  std::vector<std::uint32_t> all(engine.state_plan().params());
  std::iota(all.begin(), all.end(), 0u);
  return {engine.state_plan(), all};
}

float given_master(std::uint32_t param, std::uint64_t element) { return noise(7, param, element); }

void expect_given_masters(const Stored& stored, RankEngine& rank,
                          const libmuon::EngineConfig& config) {
  const bool halves = !config.dtypes.empty();
  rank.edit_weights([&](std::uint32_t param, std::uint64_t element, float& weight) {
    const float master = stored.at(config.model.params[param].name + " master")[element];
    ASSERT_EQ(master, given_master(param, element)) << config.model.params[param].name;
    if (halves) {
      ASSERT_EQ(weight, away(master)) << config.model.params[param].name;
    }
  });
}

// Of what is written nothing is lost by a generation, and steps need no weights installed.
TEST(HalvesByName, AreWrittenBothWhateverIsUnderWay) {
  std::array<Stored, 2> last;  // of masters that are whole, and in halves
  for (const bool halves : {false, true}) {
    const TempDir folder;
    FailingWorld failing(folder);
    auto other = libswap::SwapDirectory::open(failing.world.io(), folder.path() / "other");
    ASSERT_TRUE(other);
    const auto config = halves_or_whole(halves);
    expect_well(failing.world.run([&](Communicator& ranks) -> Result<> {
      EBB_TRY_ASSIGN(auto rank, RankEngine::open(failing.world, ranks, config));
      libmuon::Engine& engine = rank.engine();
      EBB_TRY(step_to(rank, 2));
      EBB_TRY(engine.snapshot());  // is of before
      ByName masters = all_masters(engine);
      masters.for_all([](std::uint32_t param, std::uint64_t element, float& value) {
        value = given_master(param, element);
      });
      // One of them whose weights somebody wrote to: what is written counts.
      rank.edit_weights([](std::uint32_t param, std::uint64_t, float& weight) {
        if (param == 0) weight = 5;
      });
      EBB_TRY(engine.write_state("master", masters.buffers()));
      EBB_TRY_ASSIGN(const Stored at_once, rank.stored());
      expect_given_masters(at_once, rank, config);
      if (!halves) EBB_TRY(engine.install_weights());
      EBB_TRY(step_to(rank, 3));
      EBB_TRY(engine.write_state("master", masters.buffers()));
      EBB_TRY(engine.save_to(**other));
      if (!halves) EBB_TRY(engine.install_weights());
      EBB_TRY(step_to(rank, 4));
      EBB_TRY_ASSIGN(const Stored stored, rank.stored());
      if (ranks.rank() == Rank{0}) last[halves ? 1 : 0] = stored;
      return {};
    }));
  }
  EXPECT_EQ(last[1], last[0]);
}

TEST(HalvesByName, AreRefusedWhereAHalfOfThemIsNone) {
  const TempDir folder;
  FailingWorld failing(folder);
  const auto config = halves_or_whole(true);
  expect_well(failing.world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(failing.world, ranks, config));
    libmuon::Engine& engine = rank.engine();
    EBB_TRY(step_to(rank, 2));
    EBB_TRY_ASSIGN(const Stored before, rank.stored());
    ByName masters = all_masters(engine);
    const std::vector<StateBuffer> all(masters.buffers().begin(), masters.buffers().end());
    const auto flip = [&] {
      if (ranks.rank() == Rank{1}) rank.bf16_weights(0).buffer().bf16s()[0] ^= 1u;
    };
    const auto expect_refused = [&](const Result<>& answer, Code code) {
      const bool says = ranks.rank() == Rank{1};
      expect_error(answer, says ? code : Code::peer, "on the other rank");
      EXPECT_EQ(answer.error().message.find(config.model.params[0].name) != std::string::npos, says)
          << answer.error().message;
    };
    flip();
    expect_refused(engine.read_state("master", all), Code::state);
    EBB_TRY(engine.read_state("master", std::span(all).subspan(1)));
    flip();
    EBB_TRY(engine.read_state("master", all));
    if (ranks.rank() == Rank{1}) all[0].pieces.floats()[0] = std::nanf("");
    expect_refused(engine.write_state("master", all), Code::unsupported);
    EBB_TRY_ASSIGN(const Stored behind, rank.stored());
    EXPECT_EQ(behind, before);
    return {};
  }));
}

TEST(HalvesByName, AreNoneBeforeWeightsAreHandedOut) {
  FailingWorld failing;
  const auto config = halves_or_whole(true);
  expect_well(failing.world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto engine,
                   libmuon::Engine::open(config, ranks, failing.world.io(), failing.world.swap(),
                                         {.initial = noisy_weights}));
    ByName masters = all_masters(*engine);
    for (const bool writes : {false, true}) {
      const auto early = writes ? engine->write_state("master", masters.buffers())
                                : engine->read_state("master", masters.buffers());
      expect_error(early, Code::usage, "before the weights");
      EXPECT_NE(early.error().message.find("not handed out yet"), std::string::npos);
    }
    return {};
  }));
}

}  // namespace
}  // namespace ebb::test
