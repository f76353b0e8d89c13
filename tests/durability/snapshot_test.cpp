// What a snapshot costs the training beside it, and what an export sees of that training.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>

#include "ebb/formats/conversion/convert.h"
#include "ebb/formats/registry.h"
#include "ebb/libswap/sys/process.h"
#include "ebb/libswap/tree/file_tree.h"
#include "ebb/libswap/write/write_checkpoint.h"
#include "tests/durability/machines.h"

namespace ebb::test {
namespace {

using libmuon::Communicator;

World world_on(const TempDir& directory, std::uint32_t ranks) {
  auto chosen = libswap::open_backend(libswap::BackendChoice::automatic);
  EBB_CHECK(chosen.has_value());
  return {std::move(chosen->backend), directory.path() / "swap", ranks};
}

// Writes the generation so slowly that the training makes all its steps meanwhile.
Result<> export_beside(libswap::IoQueue& io, const libmuon::PinnedCheckpoint& pinned,
                       const std::filesystem::path& to, const std::atomic<std::uint64_t>& made,
                       std::uint64_t steps) {
  EBB_TRY_ASSIGN(const auto source, pinned.describe());
  EBB_TRY_ASSIGN(const auto conversion,
                 formats::plan_conversion(*source, {.from = formats::format_of(source->catalog()),
                                                    .to = *formats::format_named("dcp"),
                                                    .world = 2}));
  const auto keep_pace = [&](const libswap::WriteProgress& progress) {
    const std::uint64_t due = steps * progress.bytes_done / progress.bytes_total;
    while (made < due) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  EBB_TRY(libswap::write_checkpoint(io, *conversion.content, conversion.plan, to,
                                    {.workers = 1, .segment_bytes = 4096, .progress = keep_pace}));
  return {};
}

Result<> train_on(RankEngine& rank, std::uint64_t steps, std::atomic<std::uint64_t>& made) {
  for (std::uint64_t step = 1; step <= steps; ++step) {
    EBB_TRY(rank.hand_in(rank.engine().step_count() + 1));
    EBB_TRY(rank.step());
    if (step % 5 == 0) EBB_TRY(rank.engine().snapshot());
    made = std::max<std::uint64_t>(made, step);
  }
  return {};
}

TEST(Export, OfAPinnedGenerationIsThatGenerationBesideFiftySteps) {
  constexpr std::uint64_t kPinned = 3, kSteps = 50;
  const TempDir directory;
  World world = world_on(directory, 2);
  std::atomic<std::uint64_t> made = 0;
  std::vector<float> weights;
  for (const auto& answer : world.run([&](Communicator& ranks) -> Result<> {
         EBB_TRY_ASSIGN(auto rank, RankEngine::open(world, ranks, machines_config(2)));
         for (std::uint64_t step = 1; step <= kPinned; ++step) {
           EBB_TRY(rank.hand_in(step));
           EBB_TRY(rank.step());
         }
         EBB_TRY(rank.commit());
         if (ranks.rank() == Rank{0}) weights = rank.flat_weights();
         EBB_TRY_ASSIGN(const auto pinned, rank.engine().open_export());
         Result<> written;
         std::thread writer;
         if (ranks.rank() == Rank{0})
           writer = std::thread([&] {
             written = export_beside(world.io(), pinned, directory.path() / "out", made, kSteps);
           });
         const Result<> trained = train_on(rank, kSteps, made);
         made = kSteps;  // in any case: nobody may wait for it
         if (writer.joinable()) writer.join();
         EBB_TRY(trained);
         EXPECT_GT(rank.engine().committed_step(), kPinned);
         EBB_TRY(ranks.agree(0));
         return written;
       }))
    EXPECT_TRUE(answer) << answer.error().message;
  const auto tensors = tensors_of(directory.path() / "out");
  std::vector<float> exported;
  for (const auto& param : nuisance_model().params) {
    const auto found = tensors.find(param.name + " param");
    ASSERT_NE(found, tensors.end()) << param.name;
    exported.insert(exported.end(), found->second.begin(), found->second.end());
  }
  EXPECT_TRUE(exported == weights);
}

double median_of(std::vector<double> numbers) {
  std::ranges::sort(numbers);
  return numbers[numbers.size() / 2];
}

// 1 GiB of AdamW state, half of it resident, one rank.
libmuon::EngineConfig a_gigabyte() {
  Training setup{.tile_bytes = 4u << 20, .budget_bytes = std::uint64_t{1} << 29, .threads = 2};
  setup.model.groups = {libmuon::AdamSpec{}};
  setup.model.params = {{"table", {87381, 1024}, 0}};
  return config_of(setup, setup.model);
}

struct Costs {
  std::vector<double> step_s, step_beside_s, stall_s;
};

// A step alone, then one behind a snapshot, in turn.
Result<Costs> measure(RankEngine& rank) {
  constexpr int kRounds = 9;
  Costs costs;
  libmuon::Engine& engine = rank.engine();
  EBB_TRY(rank.hand_in(1));
  const auto timed_step = [&]() -> Result<double> {
    EBB_TRY(engine.gradient_ready(0, rank.gradients()[0]));
    const auto begin = std::chrono::steady_clock::now();
    EBB_TRY(rank.step());
    return libswap::seconds_since(begin);
  };
  EBB_TRY(rank.step());
  for (int round = 0; round < kRounds; ++round) {
    EBB_TRY_ASSIGN(const double alone, timed_step());
    const auto before = engine.stats();
    EBB_TRY(engine.snapshot());
    EBB_TRY_ASSIGN(const double beside, timed_step());
    const auto after = engine.stats();
    EBB_TRY(engine.wait_snapshot());
    costs.step_s.push_back(alone);
    costs.step_beside_s.push_back(beside);
    costs.stall_s.push_back(after.snapshot_s - before.snapshot_s + after.stall_cut_s -
                            before.stall_cut_s);
  }
  return costs;
}

// Of 256 tiles a step, those that it changes first are written behind what is under way already;
// the others are written beside it.
TEST(Snapshot, StallsAGigabyteOfStateForAFewTilesAtMost) {
  if (form() == Form::brief) GTEST_SKIP() << "takes 4 GB of disk: ./dev durability 'Snapshot*'";
  const TempDir directory;
  World world = world_on(directory, 1);
  for (const auto& answer : world.run([&](Communicator& ranks) -> Result<> {
         EBB_TRY_ASSIGN(auto rank, RankEngine::open(world, ranks, a_gigabyte()));
         EBB_TRY_ASSIGN(const Costs costs, measure(rank));
         const double step = median_of(costs.step_s), stall = median_of(costs.stall_s);
         std::printf(
             "snapshot: stall %.2f ms (median of 9, most %.2f), step %.0f ms alone, "
             "%.0f ms behind a snapshot\n",
             1e3 * stall, 1e3 * *std::ranges::max_element(costs.stall_s), 1e3 * step,
             1e3 * median_of(costs.step_beside_s));
         EXPECT_LE(stall, 8 * step / 256);
         return {};
       }))
    EXPECT_TRUE(answer) << answer.error().message;
}

}  // namespace
}  // namespace ebb::test
