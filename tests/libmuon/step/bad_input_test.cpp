// What a trainer may do wrong and types do not exclude: one error that names it, nothing changed,
// nobody left waiting.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>

#include "tests/libmuon/support/failing_world.h"

namespace ebb::test::bad_input_tests {
namespace {

using libmuon::Communicator;
using libmuon::Engine;
using libmuon::EngineConfig;

World in_memory(std::uint32_t ranks) {
  return {libswap::make_memory_backend(libswap::MemoryDisk::create(kMuch)), "/swap", ranks};
}

EngineConfig config_for(std::uint32_t ranks) {
  return config_of(Training{.ranks = ranks}, nuisance_model());
}

Result<> open(World& world, Communicator& ranks, const EngineConfig& config) {
  EBB_TRY(Engine::open(config, ranks, world.io(), world.swap(), {.initial = noisy_weights}));
  return {};
}

// What rank 1 of two is told of its own configuration, and rank 0 of rank 1.
void expect_refused(const std::function<void(EngineConfig&)>& spoil, Code code,
                    const std::string& message) {
  World world = in_memory(2);
  const auto answers = world.run([&](Communicator& ranks) {
    EngineConfig config = config_for(2);
    if (ranks.rank() == Rank{1}) spoil(config);
    return open(world, ranks, config);
  });
  expect_error(answers[1], code, message);
  EXPECT_NE(answers[1].error().message.find(message), std::string::npos)
      << answers[1].error().message;
  expect_error(answers[0], Code::peer, message);
  EXPECT_EQ(answers[0].error().message, "rank 1 failed while planning its state");
  EXPECT_FALSE(world.swap().current()) << "nothing was made: " << message;
}

TEST(BadInput, OfOneRanksConfigurationIsNamedThereAndTheRankElsewhere) {
  const auto muon = [](EngineConfig& config) -> libmuon::MuonSpec& {
    return std::get<libmuon::MuonSpec>(config.model.groups[0]);
  };
  const auto adam = [](EngineConfig& config) -> libmuon::AdamSpec& {
    return std::get<libmuon::AdamSpec>(config.model.groups[1]);
  };
  expect_refused([](EngineConfig& config) { config.threads = 0; }, Code::usage, "threads = 0");
  expect_refused([](EngineConfig& config) { config.model.params.clear(); }, Code::usage,
                 "the model has no parameters");
  expect_refused([&](EngineConfig& config) { muon(config).beta = 1; }, Code::usage,
                 "setting beta = 1 is outside [0, 1)");
  expect_refused([&](EngineConfig& config) { adam(config).beta2 = -1; }, Code::usage,
                 "setting beta2 = -1 is outside");
  expect_refused([](EngineConfig& config) { config.model.params[3].group = 7; }, Code::usage,
                 "parameter blk.0.proj names group 7 of 2");
  expect_refused([](EngineConfig& config) { config.chunk_bytes = 0; }, Code::usage,
                 "a chunk of 0 bytes");
  expect_refused([](EngineConfig& config) { config.tile_bytes = 1000; }, Code::usage,
                 "tile size 1000");
  expect_refused([](EngineConfig& config) { config.slots = 0; }, Code::usage, "0 slots");
  expect_refused([](EngineConfig& config) { config.budget_bytes = 1; }, Code::no_memory,
                 "a budget of 1 bytes is too small for rank 1");
}

TEST(BadInput, AGroupWithoutParametersIsNoMistake) {
  World world = in_memory(2);
  expect_well(world.run([&](Communicator& ranks) -> Result<> {
    EngineConfig config = config_for(2);
    config.model.groups.push_back(libmuon::MuonSpec::keller());
    config.model.groups.insert(config.model.groups.begin(), libmuon::AdamSpec{});
    for (libmuon::ParamSpec& param : config.model.params) ++param.group;
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(world, ranks, config));
    EBB_TRY(step_to(rank, 2));
    EBB_TRY(rank.commit());
    EXPECT_TRUE(rank.engine().group(3));
    return {};
  }));
}

// Of one rank of three, which says which; the others hear whose it is, and all can go on.
TEST(BadInput, AGradientThatIsMissingOnOneRankIsNamedAndTheStepIsMadeWithItLater) {
  World world = in_memory(3);
  expect_well(world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(world, ranks, config_for(3)));
    rank.make_gradients(1);
    const bool forgets = ranks.rank() == Rank{2};
    for (std::uint32_t param = 0; param < rank.gradients().size(); ++param)
      if (!forgets || param != 5)
        EBB_TRY(rank.engine().gradient_ready(param, rank.gradients()[param]));
    const auto weights = rank.flat_weights();
    const auto refused = rank.step();
    expect_error(refused, forgets ? Code::usage : Code::peer, "one is missing");
    EXPECT_EQ(refused.error().message, forgets
                                           ? "step 1: parameter blk.0.up has no gradient on rank 2"
                                           : "rank 2 failed while checking its step");
    EXPECT_EQ(rank.flat_weights(), weights);
    if (forgets) EBB_TRY(rank.engine().gradient_ready(5, rank.gradients()[5]));
    EBB_TRY(rank.step());
    const auto twice = rank.step();
    expect_error(twice, Code::usage, "a second step");
    EXPECT_EQ(twice.error().message,
              compose("step 2: parameter emb has no gradient on rank {}", index_of(ranks.rank())));
    EXPECT_EQ(rank.engine().step_count(), 1u);
    return {};
  }));
}

constexpr std::string_view kInside = ": another thread is inside of this engine";

// What a second thread is told while a first one is inside.
void call_beside(const std::stop_token& over, RankEngine& rank, World& world) {
  Engine& engine = rank.engine();
  // Until the first thread is inside; it stays there.
  while (!over.stop_requested() && engine.set_learning_rate(0, 0.02)) std::this_thread::yield();
  ASSERT_FALSE(over.stop_requested());
  const auto refused = [](const auto& answer, const std::string& call) {
    expect_error(answer, Code::state, call);
    EXPECT_EQ(answer.error().message, compose("{}{}", call, kInside));
  };
  refused(engine.step({}), "begin_step");
  refused(engine.wait_step(), "wait_step");
  refused(engine.gradient_ready(0, rank.gradients()[0]), "gradient_ready");
  refused(engine.set(0, "beta", 0.5), "set");
  refused(engine.bind_weights(0, rank.weights()[0]), "bind_weights");
  refused(engine.install_weights(), "install_weights");
  refused(engine.snapshot(), "snapshot");
  refused(engine.wait_snapshot(), "wait_snapshot");
  refused(engine.continue_step(), "continue_step");
  refused(engine.abandon_step(), "abandon_step");
  refused(engine.save_to(world.swap()), "save_to");
  refused(engine.set_blob("a", {}), "set_blob");
}

// The second thread may be inside when the first one comes: then that is told so.
Result<> step_at_last(RankEngine& rank) {
  while (true) {
    const auto stepped = rank.step();
    if (stepped) return {};
    if (!stepped.error().message.ends_with(kInside)) return stepped.error();
  }
}

// Rank 1 keeps a step waiting until the second thread of rank 0 was refused.
std::vector<float> weights_after_a_step(std::uint32_t threads_of_rank_0) {
  World world = in_memory(2);
  std::vector<float> weights;
  std::atomic<bool> tried = threads_of_rank_0 == 1;
  expect_well(world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(world, ranks, config_for(2)));
    EBB_TRY(rank.hand_in(1));
    std::jthread second;
    if (ranks.rank() == Rank{1})
      while (!tried) std::this_thread::yield();
    else if (!tried)
      second = std::jthread([&](const std::stop_token& over) {
        call_beside(over, rank, world);
        tried = true;
      });
    EBB_TRY(step_at_last(rank));
    if (ranks.rank() == Rank{0}) weights = rank.flat_weights();
    return {};
  }));
  return weights;
}

TEST(BadInput, CallsOfASecondThreadAreRefusedAndChangeNothing) {
  const auto wanted = weights_after_a_step(1);
  ASSERT_FALSE(wanted.empty());
  EXPECT_EQ(weights_after_a_step(2), wanted);
}

}  // namespace
}  // namespace ebb::test::bad_input_tests
