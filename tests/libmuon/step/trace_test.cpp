// The timeline of engines: what it shows of their steps, and what it costs.
#include "ebb/libswap/trace.h"

#include <gtest/gtest.h>

#include "ebb/libswap/queue/io_queue.h"
#include "tests/libmuon/support/training.h"
#include "tests/libmuon/support/world.h"
#include "tests/support/chrome_trace.h"
#include "tests/support/cpu_time.h"

namespace ebb::test::trace_tests {
namespace {

using libmuon::Communicator;

Result<> train_traced(const std::filesystem::path& directory, const libmuon::EngineConfig& config,
                      std::uint64_t steps) {
  EBB_TRY_ASSIGN(auto chosen, libswap::open_backend(libswap::BackendChoice::automatic));
  World world(std::move(chosen.backend), directory, config.partition.gradients.mesh.world());
  const auto answers = world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(world, ranks, config));
    for (std::uint64_t step = 1; step <= steps; ++step) {
      EBB_TRY(rank.hand_in(step));
      EBB_TRY(rank.step());
      EBB_TRY(rank.engine().snapshot());
    }
    EBB_TRY(rank.engine().wait_snapshot());
    return {};
  });
  return answers[0];
}

TEST(EngineTrace, ShowsEachRanksStepsWithTilesTensorsAndCounters) {
  const TempDir directory;
  libswap::Trace trace;
  auto config = config_of({.ranks = 2, .budget_bytes = 6 * 4096, .threads = 3}, nuisance_model());
  config.trace = &trace;
  const auto trained = train_traced(directory.path(), config, 3);
  ASSERT_TRUE(trained) << trained.error().message;
  const std::string json = trace.to_chrome_json();
  EXPECT_EQ(test_support::crossing_spans(json), "");
  std::map<std::pair<int, std::string>, int> spans;
  for (const auto& event : test_support::chrome_events(json)) ++spans[{event.process, event.name}];
  for (const int rank : {0, 1}) {
    EXPECT_EQ((spans[{rank, "step"}]), 3);
    for (const char* name : {"page-in", "write-behind", "AdamW", "momentum", "apply", "prepare"})
      EXPECT_GT((spans[{rank, name}]), 0) << name;
  }
  for (const char* part :
       {"\"step\":3,\"tile\":", "\"tensor\":\"blk.0.up momentum_buffer\",\"bytes\":4096",
        "\"name\":\"depth of the read queue\"", "\"name\":\"bytes of tiles in memory\""})
    EXPECT_NE(json.find(part), std::string::npos) << part;
  const libswap::StepFigures figures = trace.step_figures();
  EXPECT_EQ(figures.steps, 6u);
  EXPECT_GT(figures.bytes, 0u);
  EXPECT_LE(figures.io_s, figures.step_s);
  EXPECT_LE(figures.overlap_s, figures.io_s);
}

// Of this thread, as the engine's threads put them.
double seconds_of_a_span() {
  libswap::Trace trace(1u << 12);
  constexpr int kSpans = 200'000;
  return test_support::least_cpu_seconds(
             3,
             [&] {
               for (int i = 0; i < kSpans; ++i)
                 const libswap::TraceSpan span(&trace, Rank{0}, libswap::Lane::compute, "nothing");
             }) /
         kSpans;
}

// AdamW is the least work for a tile that there is.
TEST(EngineTrace, CostsAtMostAHundredthOfAStepsProcessorTime) {
  const TempDir directory;
  libswap::Trace trace;
  libmuon::ModelSpec model;
  model.groups = {libmuon::AdamSpec{}};
  for (int i = 0; i < 4; ++i) model.params.push_back({std::to_string(i), {1u << 20}, 0});
  auto config = config_of({.tile_bytes = 4u << 20, .budget_bytes = 16u << 20}, model);
  config.trace = &trace;
  double step_s = 0, spans = 0;
  auto chosen = libswap::open_backend(libswap::BackendChoice::automatic);
  ASSERT_TRUE(chosen);
  World world(std::move(chosen->backend), directory.path(), 1);
  constexpr std::uint64_t kSteps = 3;
  const auto answers = world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(world, ranks, config));
    for (std::uint64_t step = 1; step <= kSteps; ++step) {
      EBB_TRY(rank.hand_in(step));
      const double begin = test_support::cpu_seconds(CLOCK_PROCESS_CPUTIME_ID);
      const auto before = static_cast<double>(trace.spans());
      EBB_TRY(rank.step());
      step_s += (test_support::cpu_seconds(CLOCK_PROCESS_CPUTIME_ID) - begin) / kSteps;
      spans += (static_cast<double>(trace.spans()) - before) / kSteps;
    }
    return {};
  });
  ASSERT_TRUE(answers[0]) << answers[0].error().message;
  const double share = spans * seconds_of_a_span() / step_s;
  RecordProperty("share", std::to_string(share));
  EXPECT_GT(spans, 16 * 4) << "transfers, work and counters of 13 tiles";
  EXPECT_LE(share, 0.01);
}

}  // namespace
}  // namespace ebb::test::trace_tests
