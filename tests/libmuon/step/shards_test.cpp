// State on the trainer's shards: what is special about it. That it gives the same bits in every
// other respect is a row of the other tests.
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <set>
#include <thread>

#include "ebb/libmuon/kernels/kernels.h"
#include "ebb/libmuon/spec/presets.h"
#include "tests/libmuon/support/failing_world.h"
#include "tests/libmuon/support/late_accelerator.h"
#include "tests/libmuon/support/trained.h"
#include "tests/support/longer_limits.h"

namespace ebb::test::shards_tests {
namespace {

using libmuon::Communicator;
using libmuon::Engine;
using libmuon::EngineConfig;
using libmuon::Placement;

constexpr std::uint64_t kSteps = 4;

// Every Newton-Schulz of a training: rows and columns of its matrices.
struct Seen {
  std::mutex mutex;
  std::multiset<std::pair<std::uint64_t, std::uint64_t>> matrices;
  int to_spoil = 0;  // so many of the next ones end beyond fp32
};

const libmuon::MuonSpec& growing() {
  static const libmuon::MuonSpec spec = [] {
    libmuon::MuonSpec keller = libmuon::MuonSpec::keller();
    for (auto& step : keller.iterations) step.a = 1e20f;
    return keller;
  }();
  return spec;
}

class Watching : public libmuon::Kernels {
 public:
  Watching(std::unique_ptr<libmuon::Kernels> below, Seen& seen, std::chrono::milliseconds slow)
      : below_(std::move(below)), seen_(seen), slow_(slow) {}
  libswap::Device* device() const override { return below_->device(); }
  Event look(std::span<const libmuon::LookRange> ranges, libswap::Buffer found,
             After after) override {
    return below_->look(ranges, found, after);
  }
  Event add(std::span<const libmuon::AddRange> ranges, After after) override {
    return below_->add(ranges, after);
  }
  Event prepare(std::span<const libmuon::PrepareRange> ranges, float scale, After after) override {
    return below_->prepare(ranges, scale, after);
  }
  Event decay(std::span<const libmuon::DecayRange> ranges, After after) override {
    return below_->decay(ranges, after);
  }
  Event normalise(std::span<const libmuon::NormaliseRange> ranges, After after) override {
    return below_->normalise(ranges, after);
  }
  Event finish(std::span<const libmuon::FinishRange> ranges, After after) override {
    return below_->finish(ranges, after);
  }
  Event hand_out(std::span<const libmuon::OutRange> ranges, After after) override {
    return below_->hand_out(ranges, after);
  }
  Event take(std::span<const libmuon::TakeRange> ranges, After after) override {
    return below_->take(ranges, after);
  }
  Event adamw(std::span<const libmuon::AdamRange> ranges, float scale, After after) override {
    return below_->adamw(ranges, scale, after);
  }
  Event orthogonalize(const libmuon::MatrixBatch& batch, libswap::Buffer workspace,
                      After after) override {
    libmuon::MatrixBatch made = batch;
    {
      const std::lock_guard lock(seen_.mutex);
      for (std::uint64_t i = 0; i < batch.count; ++i)
        seen_.matrices.emplace(batch.matrix.rows(), batch.matrix.cols);
      if (seen_.to_spoil > 0) --seen_.to_spoil, made.spec = &growing();
    }
    if (slow_.count() == 0) return below_->orthogonalize(made, workspace, after);
    const libswap::EventSource later;
    waits_.emplace_back([later, slow = slow_] {
      std::this_thread::sleep_for(slow);
      later.pass();
    });
    std::vector<Event> behind(after.begin(), after.end());
    behind.push_back(later.event());
    return below_->orthogonalize(made, workspace, behind);
  }

 private:
  const std::unique_ptr<libmuon::Kernels> below_;
  Seen& seen_;
  const std::chrono::milliseconds slow_;
  std::vector<std::jthread> waits_;
};

class WatchedAccelerator : public LateAccelerator {
 public:
  explicit WatchedAccelerator(std::chrono::milliseconds slow = {})
      : LateAccelerator(1, 0), slow_(slow) {}
  Result<std::unique_ptr<libmuon::Kernels>> kernels(const libmuon::KernelsFor& what) override {
    EBB_TRY_ASSIGN(auto below, LateAccelerator::kernels(what));
    return std::unique_ptr<libmuon::Kernels>(
        std::make_unique<Watching>(std::move(below), seen, slow_));
  }
  Seen seen;

 private:
  const std::chrono::milliseconds slow_;
};

// However a matrix is cut, it is orthogonalized whole, once a step, on one of the ranks.
TEST(Shards, NewtonSchulzSeesEveryMatrixWholeAndOnceAndNeverASlice) {
  std::multiset<std::pair<std::uint64_t, std::uint64_t>> wanted;
  const auto model = nuisance_model();
  for (const auto& param : model.params)
    if (param.group == 0) wanted.emplace(param.shape[0], param.shape[1]);
  for (const auto placement : kPlacements)
    for (const Policy policy : {Policy::zero12, Policy::zero12_boundary, Policy::zero3,
                                Policy::rows, Policy::uneven_rows, Policy::replicated})
      for (const std::uint64_t chunk : {1u, 1u << 28}) {
        WatchedAccelerator accelerator;
        const TempDir directory;
        const Outcome outcome = train({.ranks = 3,
                                       .gradients = policy,
                                       .placement = placement,
                                       .chunk_bytes = chunk,
                                       .accelerator = &accelerator},
                                      directory.path(), 1, Finish::just_stop);
        EXPECT_EQ(outcome.error, "");
        EXPECT_EQ(accelerator.seen.matrices, wanted) << name_of(policy);
      }
}

// A trainer that takes its rows for the matrix: the shapes are not the same, or the pieces are not.
TEST(Shards, ASliceThatIsGivenForAMatrixIsRefusedByName) {
  FailingWorld failing;
  const Training setup{.ranks = 2, .gradients = Policy::zero3, .placement = Placement::shard};
  const auto config = config_of(setup, setup.model);
  expect_well(failing.world.run([&](Communicator& ranks) -> Result<> {
    const auto open = [&](const EngineConfig& with) {
      return Engine::open(with, ranks, failing.world.io(), failing.world.swap(),
                          {.initial = noisy_weights});
    };
    EngineConfig sliced = config;
    sliced.model.params[2].shape[0] = ranks.rank() == Rank{0} ? 40 : 32;  // of 72 rows
    const auto refused = open(sliced);
    expect_error(refused, Code::usage, "rows for a matrix");
    EXPECT_NE(refused.error().message.find("blk.0.qkv [40, 24]"), std::string::npos)
        << refused.error().message;
    EBB_TRY_ASSIGN(const auto engine, open(config));
    std::vector<float> whole(72 * 24);
    const auto given = engine->gradient_ready(2, whole);
    expect_error(given, Code::layout, "a whole matrix for a shard");
    EXPECT_NE(given.error().message.find("blk.0.qkv"), std::string::npos);
    return {};
  }));
}

// Whether all ranks come to the end of a step in which one's Newton-Schulz takes three times as
// long as a rank may be silent.
bool strands_nobody(std::chrono::milliseconds limit) {
  WatchedAccelerator slow(3 * limit), fast;
  auto config = config_with(kMuch, 3, {}, Placement::shard);
  config.chunk_bytes = 1u << 28;
  const auto wanted = weights_after(1);
  FailingWorld failing;
  auto ranks = libmuon::make_thread_ranks(2, limit);
  std::vector<std::thread> threads;
  std::atomic<std::uint32_t> there = 0;
  for (auto& one : ranks)
    threads.emplace_back([&] {
      EngineConfig mine = config;
      mine.accelerator = one->rank() == Rank{0} ? &slow : &fast;
      const auto run = [&]() -> Result<> {
        EBB_TRY_ASSIGN(auto rank, RankEngine::open(failing.world, *one, mine));
        EBB_TRY(step_to(rank, 1));
        if (one->rank() == Rank{1}) {
          EXPECT_EQ(rank.flat_weights(), wanted);
        }
        return {};
      };
      const Result<> ran = run();
      if (ran) {
        ++there;
        return;
      }
      std::printf("within %d ms: %s\n", static_cast<int>(limit.count()),
                  ran.error().message.c_str());
      one->abort();
    });
  for (std::thread& thread : threads) thread.join();
  return there == ranks.size();
}

TEST(Shards, ASlowNewtonSchulzStrandsNobody) {
  EXPECT_TRUE(
      test_support::holds_within_some_limit(std::chrono::milliseconds(100), strands_nobody));
}

// One matrix, which is computed while a tile of AdamW's is read that the disk does not give.
EngineConfig one_matrix(libmuon::Accelerator& accelerator) {
  libmuon::ModelSpec model = nuisance_model();
  std::erase_if(model.params, [](const libmuon::ParamSpec& param) {
    return param.group == 0 && param.name != "blk.0.qkv";
  });
  return config_of({.ranks = 2,
                    .placement = Placement::shard,
                    .budget_bytes = 4096,
                    .accelerator = &accelerator,
                    .tiers = {{"momentum_buffer", libswap::Tier::nvme},
                              {"master", libswap::Tier::nvme},
                              {"exp_avg", libswap::Tier::nvme}}},
                   model);
}

// What a step made that was cut, and that is gone back from, is nothing to the next one.
TEST(Shards, WhatIsAbandonedBeforeItCameBackIsForgotten) {
  int spoiled = 0;
  for (std::uint64_t at = 0; at < 6; ++at) {
    WatchedAccelerator accelerator;
    FailingWorld failing;
    expect_well(failing.world.run([&](Communicator& ranks) -> Result<> {
      EBB_TRY_ASSIGN(auto rank, RankEngine::open(failing.world, ranks, one_matrix(accelerator)));
      EBB_TRY(step_to(rank, 1));
      EBB_TRY(rank.commit());
      EBB_TRY(failing.fail_reads(ranks, at));
      EBB_TRY(failing.meanwhile(ranks, [&] { accelerator.seen.to_spoil = 1; }));
      EBB_TRY(rank.hand_in(2));
      EXPECT_FALSE(rank.step());
      EBB_TRY(failing.meanwhile(ranks, [&] { failing.faults->clear(); }));
      if (!rank.engine().abandon_step()) return {};  // it came so far that all were told
      EBB_TRY(failing.meanwhile(
          ranks, [&] { spoiled += 1 - std::exchange(accelerator.seen.to_spoil, 0); }));
      return step_to(rank, 3);
    }));
  }
  EXPECT_GE(spoiled, 1);
}

TEST(Shards, TakeNoRoomForEarlyGradientsOfWhichThereAreNone) {
  Training setup{.ranks = 2, .gradients = Policy::zero3, .placement = Placement::shard};
  const auto without = Engine::plan(config_of(setup, setup.model), Rank{0});
  setup.early_gradient_bytes = 1u << 20;
  const auto with = Engine::plan(config_of(setup, setup.model), Rank{0});
  ASSERT_TRUE(without && with);
  EXPECT_EQ((*with).early_chunks, 0u);
  EXPECT_EQ((*with).staging_bytes, (*without).staging_bytes);
  const TempDir directory, other;
  EXPECT_TRUE(train(setup, directory.path(), kSteps) == train({.ranks = 1}, other.path(), kSteps));
}

// A device's kernels that know fp32 alone.
class Plain : public LateAccelerator {
 public:
  Plain() : LateAccelerator(1, 0) {}
  bool takes_what_travels() const override { return false; }
};

TEST(Shards, UpdatesThatTheKernelsOfADeviceDoNotTakeAreRefusedByTheirGroup) {
  Plain accelerator;
  Training setup{.ranks = 2, .placement = Placement::shard, .accelerator = &accelerator};
  EXPECT_TRUE(Engine::plan(config_of(setup, setup.model), Rank{0})) << "in fp32 they do";
  setup.model.groups[0] = *libmuon::preset("deepspeed");
  const auto refused = Engine::plan(config_of(setup, setup.model), Rank{0});
  expect_error(refused, Code::unsupported, "fp16");
  EXPECT_EQ(refused.error().message,
            "group 0: its updates travel in F16, and the kernels of late take fp32");
  setup.placement = Placement::owner;
  EXPECT_TRUE(Engine::plan(config_of(setup, setup.model), Rank{0}));
}

TEST(Shards, APlacementThatIsNotTheSameOnAllRanksIsNamed) {
  FailingWorld failing;
  const auto answers = failing.world.run([&](Communicator& ranks) -> Result<> {
    const auto placement = ranks.rank() == Rank{0} ? Placement::owner : Placement::shard;
    EBB_TRY(RankEngine::open(failing.world, ranks, config_with(kMuch, 3, {}, placement)));
    return {};
  });
  for (const Result<>& answer : answers) {
    expect_error(answer, Code::usage, "two placements");
    EXPECT_NE(answer.error().message.find("placement of Muon's state is not the same"),
              std::string::npos)
        << answer.error().message;
  }
}

}  // namespace
}  // namespace ebb::test::shards_tests
