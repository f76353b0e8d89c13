// Whole trainings on the plugin over the stub: wherever state, gradients and weights lie, one
// result, which is near to the host's.
#include <cmath>
#include <thread>

#include "ebb/libmuon/comm/plugin_ranks.h"
#include "ebb/libmuon/spec/presets.h"
#include "tests/libmuon/cuda/plugged.h"
#include "tests/libmuon/support/trained.h"
#include "tests/libmuon/support/world.h"

namespace ebb {
namespace {

using libmuon::Side;
using libswap::Tier;
using test::Plugged;
using test::TempDir;
using test::train;
using test::train_in_two;
using test::Trained;
using test::Training;

constexpr std::uint64_t kSteps = 4;

Training all_on_device(libmuon::Accelerator& accelerator) {
  return {.accelerator = &accelerator,
          .tiers = {{"master", Tier::device},
                    {"momentum_buffer", Tier::device},
                    {"exp_avg", Tier::device}},
          .gradients_on = Side::device,
          .weights_on = Side::device};
}

TEST(CudaSteps, OfAllMixesOfTiersGiveTheBitsOfAllOnTheDevice) {
  Plugged plugged(50);
  const Trained on_device = train_in_two(all_on_device(plugged.accelerator()), kSteps);
  ASSERT_FALSE(on_device.outcome.weights.empty());
  std::uint64_t seed = 0;
  for (const Tier master : {Tier::device, Tier::host, Tier::nvme})
    for (const Tier momentum : {Tier::device, Tier::host, Tier::nvme}) {
      const Tier adam = static_cast<Tier>(++seed % 3);
      const Training setup{
          .ranks = 2,
          .placement = test::kPlacements[seed / 2 % 2],
          .chunk_bytes = seed % 3 == 0 ? 5000u : 1u << 28,
          .budget_bytes = (seed % 2 == 0 ? 16u : 64u) * 4096,
          .threads = 1 + static_cast<std::uint32_t>(seed % 2),
          .snapshot_every = 1,
          .accelerator = &plugged.accelerator(),
          .tiers = {{"master", master}, {"momentum_buffer", momentum}, {"exp_avg", adam}},
          .gradients_on = seed % 2 == 0 ? Side::device : Side::host,
          .weights_on = seed % 4 < 2 ? Side::device : Side::host,
          .wire = seed % 8 < 4 ? Side::device : Side::host};
      EXPECT_TRUE(train_in_two(setup, kSteps) == on_device) << "seed " << seed;
    }
}

// What a trainer copies itself is not pinned, nor is what fills tiles of a new store that are on
// the device; all else is.
TEST(CudaStubSteps, CopyTilesAndWhatTravelsThroughPinnedMemory) {
  Plugged plugged;
  const auto unpinned = [&](const Training& setup) {
    const std::uint64_t before = plugged.call(ebb_stub_copied_unpinned, "ebb_stub_copied_unpinned");
    train_in_two(setup, kSteps);
    return plugged.call(ebb_stub_copied_unpinned, "ebb_stub_copied_unpinned") - before;
  };
  Training setup = all_on_device(plugged.accelerator());
  setup.ranks = 2;
  const std::uint64_t on_device = unpinned(setup);
  setup.budget_bytes = 16 * 4096;
  setup.wire = Side::host;
  setup.tiers = {{"master", Tier::nvme}, {"momentum_buffer", Tier::host}};
  EXPECT_LT(unpinned(setup), on_device);
}

// Wherever in a training a device fails: its error on every rank, nobody waits for ever, and what
// was committed before goes on as if nothing had happened.
TEST(CudaStubSteps, OnADeviceThatFailsStopAndGoOnFromTheLastSnapshot) {
  Trained undisturbed;
  {
    Plugged plugged;
    undisturbed = train_in_two(all_on_device(plugged.accelerator()), kSteps);
  }
  std::uint64_t stopped = 0;
  for (const char* const function :
       {"launch_look", "launch_prepare", "cublasLtMatmul", "launch_finish", "launch_adamw",
        "cudaMemcpyAsync", "cudaEventSynchronize", "cudaEventRecord"})
    for (const std::uint32_t calls : {0u, 9u, 60u}) {
      const TempDir directory;
      {
        Plugged plugged(50);
        Training setup = all_on_device(plugged.accelerator());
        setup.ranks = 2;
        setup.placement = test::kPlacements[calls % 2];
        setup.snapshot_every = 1;
        setup.gradients_on = setup.weights_on = Side::host;  // the trainer's own do not fail
        if (calls == 9) setup.tiers = {{"master", Tier::host}, {"exp_avg", Tier::nvme}};
        EXPECT_EQ(train(setup, directory.path(), 1).error, "");
        plugged.fail(function, calls);
        const auto outcome = train(setup, directory.path(), kSteps);
        if (outcome.error.empty()) continue;  // it was not called so often
        EXPECT_NE(outcome.error.find("Stub 0: "), std::string::npos) << outcome.error;
        ++stopped;
      }
      Plugged plugged;
      Training setup = all_on_device(plugged.accelerator());
      setup.ranks = 2;
      setup.placement = test::kPlacements[calls % 2];
      const auto outcome = train(setup, directory.path(), kSteps);
      EXPECT_EQ(outcome.error, "") << function << " after " << calls;
      EXPECT_TRUE(outcome.weights == undisturbed.outcome.weights) << function << " after " << calls;
    }
  EXPECT_GE(stopped, 16u);
}

// The step itself, not the call behind it: what the device did not compute is handed out to nobody.
TEST(CudaStubSteps, OnADeviceThatFailsAreNotCalledDone) {
  for (const char* const function : {"launch_prepare", "launch_finish", "launch_adamw"})
    for (const std::uint64_t chunk : {5000u, 1u << 28}) {
      const TempDir directory;
      Plugged plugged;
      Training setup = all_on_device(plugged.accelerator());
      setup.chunk_bytes = chunk;
      setup.weights_on = Side::host;
      ASSERT_EQ(train(setup, directory.path(), 1).error, "");
      plugged.fail(function);
      const auto outcome = train(setup, directory.path(), 2, test::Finish::just_stop);
      EXPECT_NE(outcome.error.find("Stub 0: "), std::string::npos) << function << outcome.error;
      EXPECT_TRUE(outcome.results.empty()) << function << " in chunks of " << chunk;
    }
}

// Two ranks whose communicator is NCCL's, which the stub joins and which does not block, and two
// that are threads.
TEST(CudaStubSteps, OverNcclGiveTheBitsOfThreads) {
  Plugged plugged(50);
  Training setup = all_on_device(plugged.accelerator());
  setup.ranks = 2;
  const TempDir directory, threads_directory;
  const auto wanted = train(setup, threads_directory.path(), kSteps);
  ASSERT_EQ(wanted.error, "");
  std::vector<void*> groups(4);
  for (const std::size_t first : {0u, 2u})
    plugged.call(ebb_stub_groups, "ebb_stub_groups", 2u, 0u, groups.data() + first);
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      const auto ranks =
          libmuon::make_plugin_ranks(plugged.device(), {groups[rank], groups[rank + 2]});
      ASSERT_TRUE(ranks) << ranks.error().message;
      const auto outcome = test::train_in_process(setup, **ranks, directory.path(), kSteps);
      EXPECT_EQ(outcome.error, "");
      EXPECT_TRUE(rank != 0 || outcome.weights == wanted.weights);
    });
  for (std::thread& thread : threads) thread.join();
  for (void* const group : groups) plugged.call(ebb_stub_end_group, "ebb_stub_end_group", group);
}

// U travels in fp32 or bf16, O in fp32, bf16 or fp16; decay in the gradient waits apart from U.
TEST(CudaSteps, OnShardsGiveTheBitsOfOwnersWhateverTravels) {
  Plugged plugged(50);
  libmuon::MuonSpec decays = *libmuon::preset("torch");
  decays.decay = libmuon::Decay::l2;
  decays.weight_decay = 0.3;
  for (const libmuon::MuonSpec& spec : {*libmuon::preset("torch"), *libmuon::preset("deepspeed"),
                                        *libmuon::preset("emerging"), decays}) {
    Training setup = all_on_device(plugged.accelerator());
    setup.model.groups[0] = spec;
    const Trained wanted = train_in_two(setup, kSteps);
    EXPECT_EQ(wanted.outcome.error, "");
    ASSERT_FALSE(wanted.outcome.weights.empty());
    setup.placement = libmuon::Placement::shard;
    setup.ranks = 2;
    setup.chunk_bytes = 5000;
    setup.tiers = {{"master", Tier::nvme}};
    setup.budget_bytes = 16 * 4096;
    EXPECT_TRUE(train_in_two(setup, kSteps) == wanted);
  }
}

// In fp32 the two differ by the order of their sums alone.
TEST(CudaSteps, AreNearToTheHosts) {
  Plugged plugged;
  const auto there = train_in_two(all_on_device(plugged.accelerator()), kSteps).outcome.weights;
  const auto host = train_in_two({}, kSteps).outcome.weights;
  ASSERT_EQ(there.size(), host.size());
  double most = 0, largest = 0;
  for (std::size_t i = 0; i < host.size(); ++i) {
    most = std::max(most, std::abs(static_cast<double>(there[i]) - static_cast<double>(host[i])));
    largest = std::max(largest, std::abs(static_cast<double>(host[i])));
  }
  EXPECT_LE(most, 1e-5 * largest);
  EXPECT_GT(largest, 0);
}

}  // namespace
}  // namespace ebb
