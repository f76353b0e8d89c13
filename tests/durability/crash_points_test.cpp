// Power fails before each operation of each rank that changes the disk, under two whole engines:
// create, steps, snapshots, a step that is continued, an export, a resume, a conversion. The disk
// keeps nothing, all, or a drawn choice of what was not synced, torn at sectors. What a new run
// finds is one whole generation, not older than what was promised; a checkpoint is whole or absent.
#include <array>
#include <atomic>
#include <cstdio>
#include <map>
#include <optional>

#include "ebb/formats/conversion/convert.h"
#include "ebb/formats/describe.h"
#include "ebb/formats/native/ebb.h"
#include "ebb/formats/registry.h"
#include "ebb/libswap/write/write_checkpoint.h"
#include "tests/durability/disk_tree.h"
#include "tests/durability/machines.h"

namespace ebb::test::crash_points_tests {
namespace {

using libmuon::Communicator;
using libswap::FaultOn;
using libswap::FaultPlan;
using libswap::IoQueue;
using libswap::MemoryDisk;
using libswap::PowerLoss;

constexpr std::uint64_t kExported = 4, kConverted = 5;  // the steps of these checkpoints

enum class Phase : std::uint8_t { create, step, snapshot, go_on, write_dcp, recover, convert };
constexpr std::array<const char*, 7> kPhases = {"create", "step",    "snapshot", "continue",
                                                "export", "recover", "convert"};

// What the run was told before power failed.
struct Promise {
  std::uint64_t committed = 0;  // step
  bool exported = false, converted = false;
};

// The script that a crash interrupts somewhere, on a disk of its own.
class Script {
 public:
  Script() {
    const auto backend = libswap::make_memory_backend(disk_);
    EBB_CHECK(backend->make_directory("/out").has_value());
    EBB_CHECK(backend->sync_directory("/").has_value());
  }
  const std::shared_ptr<MemoryDisk>& disk() const { return disk_; }
  FaultPlan& faults(std::uint32_t rank) { return machines_.faults(rank); }
  Promise promise() const { return {committed_, exported_, converted_}; }
  Phase phase() const { return phase_; }

  // Whether it came to its end.
  bool run() {
    const auto well = [](const std::vector<Result<>>& answers) {
      return std::ranges::all_of(answers, [](const auto& one) { return one.has_value(); });
    };
    phase_ = Phase::create;
    const bool first = well(
        machines_.run([&](Communicator& ranks, IoQueue& io) { return first_start(ranks, io); }));
    if (!first) return false;
    phase_ = Phase::recover;
    return well(
        machines_.run([&](Communicator& ranks, IoQueue& io) { return second_start(ranks, io); }));
  }

 private:
  Result<> first_start(Communicator& ranks, IoQueue& io) {
    EBB_TRY_ASSIGN(auto open, open_rank(ranks, io));
    EBB_TRY(step(open.rank, Phase::step));
    EBB_TRY(commit(open.rank));
    EBB_TRY(step(open.rank, Phase::step));
    EBB_TRY(stop_and_go_on(ranks, open.rank));
    phase_ = Phase::snapshot;
    EBB_TRY(open.rank.engine().snapshot());
    EBB_TRY(step(open.rank, Phase::snapshot));
    EBB_TRY(commit(open.rank));
    phase_ = Phase::write_dcp;
    EBB_TRY_ASSIGN(const auto pinned, open.rank.engine().open_export());
    if (ranks.rank() == Rank{0}) {
      EBB_TRY(convert(io, open.rank.engine(), "dcp", "/out/exported"));
      exported_ = true;
    }
    EBB_TRY(ranks.agree(0));
    return {};
  }

  Result<> second_start(Communicator& ranks, IoQueue& io) {
    EBB_TRY_ASSIGN(auto open, open_rank(ranks, io));
    EBB_TRY(step(open.rank, Phase::recover));
    EBB_TRY(commit(open.rank));
    phase_ = Phase::convert;
    if (ranks.rank() == Rank{0}) {
      EBB_TRY(convert(io, open.rank.engine(), "ebb", "/out/converted"));
      converted_ = true;
    }
    EBB_TRY(ranks.agree(0));
    return {};
  }

  Result<> step(RankEngine& rank, Phase phase) {
    phase_ = phase;
    EBB_TRY(rank.hand_in(rank.engine().step_count() + 1));
    EBB_TRY(rank.step());
    return {};
  }
  Result<> commit(RankEngine& rank) {
    phase_ = Phase::snapshot;
    EBB_TRY(rank.engine().wait_snapshot());
    raise(rank.engine().committed_step());
    EBB_TRY(rank.commit());
    raise(rank.engine().committed_step());
    return {};
  }
  void raise(std::uint64_t step) {
    std::uint64_t seen = committed_;
    while (seen < step && !committed_.compare_exchange_weak(seen, step)) {
    }
  }

  // Rank 1's disk does not answer reads for a while.
  Result<> stop_and_go_on(Communicator& ranks, RankEngine& rank) {
    phase_ = Phase::go_on;
    if (ranks.rank() == Rank{1})
      faults(1).add({.on = FaultOn::read, .at = 4, .count = FaultPlan::kForEver});
    EBB_TRY(rank.hand_in(rank.engine().step_count() + 1));
    const auto stopped = rank.step();
    EXPECT_FALSE(stopped);
    faults(index_of(ranks.rank())).clear();
    EBB_TRY(ranks.agree(0));
    EBB_TRY(rank.engine().continue_step());
    return {};
  }

  static Result<> convert(IoQueue& io, const libmuon::Engine& engine, const char* format,
                          const char* to) {
    EBB_TRY_ASSIGN(auto tree, tree_on_disk(io, engine.store_directory()));
    EBB_TRY_ASSIGN(const auto source, formats::describe_ebb_generation(
                                          std::move(tree), engine.committed_generation()));
    EBB_TRY_ASSIGN(const auto conversion,
                   formats::plan_conversion(*source, {.from = formats::format_of(source->catalog()),
                                                      .to = *formats::format_named(format),
                                                      .world = 3}));
    EBB_TRY(
        libswap::write_checkpoint(io, *conversion.content, conversion.plan, to, {.workers = 1}));
    return {};
  }

  const std::shared_ptr<MemoryDisk> disk_ = empty_disk();
  Machines machines_{disk_};
  std::atomic<std::uint64_t> committed_ = 0;
  std::atomic<bool> exported_ = false, converted_ = false;
  std::atomic<Phase> phase_ = Phase::create;
};

using Tensors = std::map<std::string, std::vector<float>>;

// What lies below /out/<name>; nullopt: nothing.
std::optional<Tensors> tensors_on(IoQueue& io, const char* name) {
  const auto there = io.backend().exists(libswap::fs::path("/out") / name);
  EXPECT_TRUE(there);
  if (!there || !*there) return std::nullopt;
  auto tree = tree_on_disk(io, libswap::fs::path("/out") / name);
  EXPECT_TRUE(tree);
  if (!tree) return std::nullopt;
  const auto checkpoint = formats::describe(std::move(*tree));
  EXPECT_TRUE(checkpoint) << checkpoint.error().message;
  return checkpoint ? std::optional(tensors_of(**checkpoint)) : std::nullopt;
}

// Of a script that nothing interrupts.
struct Undisturbed {
  std::array<std::uint64_t, 2> operations{};
  Tensors exported, converted;
};
const Undisturbed& undisturbed() {
  static const Undisturbed found = [] {
    Undisturbed result;
    Script script;
    EXPECT_TRUE(script.run());
    EXPECT_EQ(script.promise().committed, kConverted);
    for (const std::uint32_t rank : {0u, 1u})
      result.operations[rank] = script.faults(rank).durable_operations();
    const auto io = libswap::IoQueue::start(libswap::make_memory_backend(script.disk()), {});
    result.exported = tensors_on(**io, "exported").value_or(Tensors());
    result.converted = tensors_on(**io, "converted").value_or(Tensors());
    EXPECT_FALSE(result.exported.empty() || result.converted.empty());
    return result;
  }();
  return found;
}

// --- what a crash leaves ------------------------------------------------------------------------

// A start on what is left: one whole generation, and training goes on from it.
Result<> resume(Communicator& ranks, IoQueue& io, const Promise& promise) {
  EBB_TRY_ASSIGN(auto open, open_rank(ranks, io));
  libmuon::Engine& engine = open.rank.engine();
  const std::uint64_t found = engine.step_count();
  EXPECT_GE(found, promise.committed) << "a committed step is gone";
  EXPECT_LE(found, kMostSteps - 1);
  for (const std::uint64_t step : {found, found + 1}) {
    if (step > found) {
      EBB_TRY(open.rank.hand_in(step));
      EBB_TRY(open.rank.step());
    }
    EXPECT_TRUE(open.rank.flat_weights() == wanted_weights().at(step)) << "other bits at " << step;
  }
  EBB_TRY(open.rank.commit());
  return {};
}

void expect_whole_or_absent(IoQueue& io, const char* name, const Tensors& wanted, bool promised) {
  const auto found = tensors_on(io, name);
  EXPECT_TRUE(found || !promised) << name << " was written, and is gone";
  if (found) {
    EXPECT_TRUE(*found == wanted) << name;
  }
}

void check_image(const std::shared_ptr<MemoryDisk>& image, const Promise& promise) {
  Machines machines(image);
  for (const auto& answer :
       machines.run([&](Communicator& ranks, IoQueue& io) { return resume(ranks, io, promise); }))
    EXPECT_TRUE(answer) << answer.error().message;
  const auto io = libswap::IoQueue::start(libswap::make_memory_backend(image), {});
  ASSERT_TRUE(io);
  EXPECT_TRUE(libswap::remove_stale_temporaries((*io)->backend(), "/out"));
  expect_whole_or_absent(**io, "exported", undisturbed().exported, promise.exported);
  expect_whole_or_absent(**io, "converted", undisturbed().converted, promise.converted);
}

// The start on what is left is killed, too, and power fails again.
void check_after_second_crash(const std::shared_ptr<MemoryDisk>& image, const Promise& promise,
                              std::uint64_t seed) {
  Draws draws(seed);
  std::shared_ptr<MemoryDisk> left;
  const auto disk = image->after({PowerLoss::Unsynced::kept, 0});
  Machines second(disk);
  second.faults(static_cast<std::uint32_t>(draws.below(2))).die_before(draws.below(60), [&] {
    left = disk->after({PowerLoss::Unsynced::drawn, seed});
  });
  for (const auto& answer :
       second.run([&](Communicator& ranks, IoQueue& io) { return resume(ranks, io, promise); }))
    EXPECT_TRUE(answer || left != nullptr) << answer.error().message;
  if (left != nullptr) check_image(left, promise);
}

struct Point {
  std::uint32_t rank = 0;
  std::uint64_t at = 0;
};

struct Tally {
  std::atomic<std::uint64_t> points = 0, states = 0;
  std::array<std::atomic<std::uint64_t>, kPhases.size()> by_phase{};
};

// Nothing, all, and `drawn` choices of what was not synced.
void crash_at(const Point& point, std::uint64_t drawn, std::uint64_t seed, Tally& tally) {
  const auto what = compose("rank {} before operation {}, seed {}", point.rank, point.at, seed);
  SCOPED_TRACE(what);
  Script script;
  Promise promise;
  Phase phase{};
  std::vector<std::shared_ptr<MemoryDisk>> images;
  script.faults(point.rank).die_before(point.at, [&] {
    promise = script.promise();  // before the images: it may be more by now
    phase = script.phase();
    images.push_back(script.disk()->after({PowerLoss::Unsynced::lost, 0}));
    images.push_back(script.disk()->after({PowerLoss::Unsynced::kept, 0}));
    for (std::uint64_t i = 0; i < drawn; ++i)
      images.push_back(script.disk()->after({PowerLoss::Unsynced::drawn, seed + i}));
  });
  script.run();
  if (images.empty()) return;  // this time the rank made fewer operations
  for (const auto& image : images) check_image(image, promise);
  check_after_second_crash(images.back(), promise, seed);
  ++tally.points;
  tally.states += images.size();
  ++tally.by_phase[static_cast<std::size_t>(phase)];
}

std::vector<Point> all_points() {
  std::vector<Point> points;
  for (const std::uint32_t rank : {0u, 1u})
    for (std::uint64_t at = 0; at < undisturbed().operations[rank]; ++at)
      points.push_back({rank, at});
  return points;
}

void say(const char* what, const Tally& tally, std::uint64_t seed) {
  std::printf("%s: %llu points, %llu states, seed %llu;", what,
              static_cast<unsigned long long>(tally.points),
              static_cast<unsigned long long>(tally.states), static_cast<unsigned long long>(seed));
  for (std::size_t i = 0; i < kPhases.size(); ++i)
    std::printf(" %s %llu", kPhases[i], static_cast<unsigned long long>(tally.by_phase[i]));
  std::printf("\n");
}

TEST(CrashPoints, LeaveOneWholeGenerationAndWholeCheckpointsOrNone) {
  const std::uint64_t seed = seed_for("crash points");
  const auto points = all_points();
  EXPECT_GE(points.size(), 300u);
  const std::uint64_t stride = brief_or(9, 1);
  Tally tally;
  in_parallel(points.size() / stride,
              [&](std::uint64_t i) { crash_at(points[i * stride], 2, seed + 1000 * i, tally); });
  say("crash points", tally, seed);
  for (std::size_t i = 0; i < kPhases.size(); ++i) EXPECT_GT(tally.by_phase[i], 0u) << kPhases[i];
}

TEST(PowerLoss, AnySubsetOfUnsyncedWritesLeavesOneWholeGeneration) {
  const std::uint64_t seed = seed_for("power loss");
  const auto points = all_points();
  constexpr std::uint64_t kDrawn = 30;
  const std::uint64_t wanted = brief_or(300, 20000);
  Tally tally;
  // Points are drawn as well: where ranks stand to each other differs from run to run.
  in_parallel(wanted / kDrawn, [&](std::uint64_t i) {
    Draws draws(seed + i);
    crash_at(draws.of(points), kDrawn, draws.next(), tally);
  });
  say("power loss", tally, seed);
  EXPECT_GE(tally.states, wanted * 9 / 10);
}

}  // namespace
}  // namespace ebb::test::crash_points_tests
