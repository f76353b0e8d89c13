// Masters that are bound weights, or whose high halves are, are read and written by name.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <numeric>

#include "tests/libmuon/support/bound_masters.h"
#include "tests/libmuon/support/by_name.h"
#include "tests/libmuon/support/failing_world.h"

namespace ebb::test {
namespace {

using libmuon::Communicator;
using libmuon::Masters;
using libmuon::StateBuffer;

constexpr std::array kAllMasters = {Masters::kept, Masters::halves, Masters::bound};

libmuon::EngineConfig config_with(Masters masters) {
  Training setup{.ranks = 2, .gradients = Policy::zero3, .weights = Policy::zero3};
  setup.chunk_bytes = 20000;
  setup.budget_bytes = kLittle;
  if (masters == Masters::halves) setup.dtypes = kHalves;
  if (masters == Masters::bound) setup.dtypes = kWeightsAreMasters;
  return config_of(setup, masters == Masters::bound ? setup.model : with_bf16_weights(setup.model));
}

ByName all_masters(const libmuon::Engine& engine) {
  std::vector<std::uint32_t> all(engine.state_plan().params());
  std::iota(all.begin(), all.end(), 0u);
  return {engine.state_plan(), all};
}

float given_master(std::uint32_t param, std::uint64_t element) { return noise(7, param, element); }

void expect_given_masters(const Stored& stored, RankEngine& rank,
                          const libmuon::EngineConfig& config) {
  const Masters masters = rank.engine().state_plan().columns().masters();
  rank.edit_weights([&](std::uint32_t param, std::uint64_t element, float& weight) {
    const float master = stored.at(config.model.params[param].name + " master")[element];
    ASSERT_EQ(master, given_master(param, element)) << config.model.params[param].name;
    if (masters != Masters::kept) {
      ASSERT_EQ(weight, masters == Masters::halves ? away(master) : master)
          << config.model.params[param].name;
    }
  });
}

// Of what is written nothing is lost by a generation, and steps need no weights installed.
TEST(BoundMastersByName, AreWrittenWhateverIsUnderWay) {
  std::array<Stored, kAllMasters.size()> last;
  for (const Masters kind : kAllMasters) {
    const bool bound = kind != Masters::kept;
    const TempDir folder;
    FailingWorld failing(folder);
    auto other = libswap::SwapDirectory::open(failing.world.io(), folder.path() / "other");
    ASSERT_TRUE(other);
    const auto config = config_with(kind);
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
      if (!bound) EBB_TRY(engine.install_weights());
      EBB_TRY(step_to(rank, 3));
      EBB_TRY(engine.write_state("master", masters.buffers()));
      EBB_TRY(engine.save_to(**other));
      if (!bound) EBB_TRY(engine.install_weights());
      EBB_TRY(step_to(rank, 4));
      EBB_TRY_ASSIGN(const Stored stored, rank.stored());
      if (ranks.rank() == Rank{0}) last[static_cast<std::size_t>(kind)] = stored;
      return {};
    }));
  }
  for (const Stored& each : last) EXPECT_EQ(each, last[0]);
}

TEST(HalvesByName, AreRefusedWhereAHalfOfThemIsNone) {
  const TempDir folder;
  FailingWorld failing(folder);
  const auto config = config_with(Masters::halves);
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

void expect_none_before_weights_are_handed_out(Masters kind) {
  FailingWorld failing;
  const auto config = config_with(kind);
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

TEST(BoundMastersByName, AreNoneBeforeWeightsAreHandedOut) {
  for (const Masters kind : kBoundMasters) expect_none_before_weights_are_handed_out(kind);
}

}  // namespace
}  // namespace ebb::test
