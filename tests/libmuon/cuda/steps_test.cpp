// Whole trainings on the plugin over the stub: near to the host's, and what is done where the
// device fails; that all of them have the same bits is said in runs_test.cpp.
#include <atomic>
#include <cmath>
#include <thread>

#include "ebb/libmuon/comm/plugin_ranks.h"
#include "ebb/libmuon/spec/presets.h"
#include "tests/libmuon/cuda/plugged.h"
#include "tests/libmuon/support/offloaded_rank.h"
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

// The greatest difference, of the greatest number.
double apart(const std::vector<float>& a, const std::vector<float>& b) {
  EBB_CHECK(a.size() == b.size() && !a.empty());
  double most = 0, largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    most = std::max(most, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
    largest = std::max(largest, std::abs(static_cast<double>(b[i])));
  }
  return most / largest;
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
       {"look_kernel", "prepare_kernel", "cublasLtMatmul", "finish_kernel", "adamw_kernel",
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
  for (const char* const function : {"prepare_kernel", "finish_kernel", "adamw_kernel"})
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

// Gradients are looked at on the device: the host's norms and clips, to the bit, and no weight of a
// step moves whose gradient is not finite on one rank.
TEST(CudaSteps, SkipAndClipAsTheHostDoes) {
  Plugged plugged(50);
  Training setup = all_on_device(plugged.accelerator());
  setup.ranks = 2;
  setup.max_norm = 3;
  setup.poison_step = 2;
  const TempDir there, here;
  const auto device = train(setup, there.path(), 3);
  const auto host = train({.ranks = 2, .poison_step = 2, .max_norm = 3}, here.path(), 3);
  ASSERT_EQ(device.error, "");
  ASSERT_EQ(device.results.size(), host.results.size());
  ASSERT_EQ(host.error, "");
  std::size_t skipped = 0;
  for (std::size_t i = 0; i < host.results.size(); ++i) {
    EXPECT_EQ(device.results[i].skipped, host.results[i].skipped) << i;
    skipped += device.results[i].skipped;
    if (device.results[i].skipped) continue;
    EXPECT_EQ(device.results[i].norm, host.results[i].norm) << i;
    EXPECT_EQ(device.results[i].clip, host.results[i].clip) << i;
  }
  EXPECT_EQ(skipped, 1u);
  EXPECT_LE(apart(device.weights, host.weights), 1e-5);
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

// Which symmetric products are the device's own is the store's to say, once it was measured: bits
// do not change where a run goes on.
TEST(CudaStubSteps, MultiplyAsTheStoreSaysAndNoOtherWay) {
  const TempDir directory;
  const auto origin = [&](std::uint64_t symmetric_from, std::uint64_t steps) {
    Plugged plugged(0, symmetric_from);
    Training setup = all_on_device(plugged.accelerator());
    setup.model.groups[0] = *libmuon::preset("keller");  // in bf16
    setup.ranks = 2;
    const auto outcome = train(setup, directory.path(), steps);
    EXPECT_EQ(outcome.error, "");
    return outcome.origin;
  };
  EXPECT_EQ(origin(1024, 1), "created at step 0");
  EXPECT_EQ(origin(512, 2), "resumed the store at step 1");
  const std::string without = origin(0, 3);
  EXPECT_NE(without.find("other kernels: cuBLASLt 130101 Stub elementwise=ebb "
                         "symmetric=own-from-1024"),
            std::string::npos)
      << without;
}

// The plugin's, but that one rank's measurement, whichever asks first, finds `first`, and all
// others own products from 16 rows on.
class Measured : public libmuon::Accelerator {
 public:
  static constexpr std::uint32_t kOwn = 9;
  Measured(libmuon::Accelerator& of, std::uint32_t first) : of_(of), first_(first) {}
  libswap::Device& device() override { return of_.device(); }
  Result<Choice> measure() override { return Choice{asked_.exchange(true) ? kOwn : first_, ""}; }
  std::string fingerprint(std::uint32_t choice) const override { return of_.fingerprint(choice); }
  std::optional<std::uint32_t> choice_in(std::string_view) const override { return std::nullopt; }
  bool takes_what_travels() const override { return of_.takes_what_travels(); }
  std::uint64_t workspace_bytes(const libmuon::MuonSpec& spec, const libmuon::Block& matrix,
                                std::uint64_t count) const override {
    return of_.workspace_bytes(spec, matrix, count);
  }
  Result<std::unique_ptr<libmuon::Kernels>> kernels(const libmuon::KernelsFor& what) override {
    return of_.kernels(what);
  }

 private:
  libmuon::Accelerator& of_;
  const std::uint32_t first_;
  std::atomic<bool> asked_ = false;
};

TEST(CudaStubSteps, MultiplyAsAllRanksAgree) {
  Plugged plugged(0, 16);
  for (const auto placement : {libmuon::Placement::owner, libmuon::Placement::shard}) {
    const auto own = [&](std::uint32_t first) {
      Measured measured(plugged.accelerator(), first);
      Training setup = all_on_device(measured);
      setup.model.groups[0] = *libmuon::preset("keller");  // in bf16
      setup.ranks = 2;
      setup.placement = placement;
      const std::uint64_t before = plugged.calls("symmetric_kernel");
      const TempDir directory;
      EXPECT_EQ(train(setup, directory.path(), 1).error, "");
      return plugged.calls("symmetric_kernel") - before;
    };
    EXPECT_EQ(own(0), 0u);
    EXPECT_GT(own(Measured::kOwn), 0u);
  }
}

// The host computes for a trainer on the device, which copies a gradient down when it is made and a
// weight up when it is new. Nothing else crosses: the engine knows of no device.
TEST(CudaSteps, OfTheHostForATrainerOnTheDeviceMoveOneGradientDownAndOneWeightUp) {
  Plugged plugged(50);
  const Training setup{.ranks = 2,
                       .gradients = Policy::zero12,
                       .chunk_bytes = 20000,
                       .budget_bytes = 64 * 4096,
                       .max_norm = 3,
                       .tiers = {{"momentum_buffer", Tier::host}}};
  const TempDir directory;
  const auto wanted = train(setup, directory.path(), kSteps);
  ASSERT_EQ(wanted.error, "");
  std::uint64_t model = 0;
  for (const auto& param : setup.model.params) model += 4 * formats::volume(param.shape);
  test::World world(libswap::make_memory_backend(libswap::MemoryDisk::create(test::kMuch)), "/swap",
                    setup.ranks);
  const auto make = [&](const libswap::Buffer& to, std::function<void(std::span<float>)> values) {
    std::vector<float> made(to.elems);
    values(made);
    libswap::copy(libswap::buffer_of(std::span(made)), to, {}).wait();
    return libswap::Event();
  };
  std::atomic<std::uint64_t> down = 0, up = 0;
  test::expect_well(world.run([&](libmuon::Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank,
                   test::OffloadedRank::open(world, ranks, test::config_of(setup, setup.model),
                                             plugged.device(), make));
    for (std::uint64_t step = 0; step < kSteps; ++step) EBB_TRY(rank.step());
    down += rank.down();
    up += rank.up();
    if (ranks.rank() == Rank{0}) {
      EXPECT_TRUE(rank.weights() == wanted.weights);
    }
    EBB_TRY(ranks.agree(0));  // all memory is there until all have counted
    // Of the stub: gradients and weights are all that the device holds, on both ranks.
    if (plugged.allocated() != 0) {
      EXPECT_LE(plugged.allocated(), 3 * model + 256 * 4 * setup.model.params.size());
    }
    EBB_TRY(ranks.agree(0));
    return {};
  }));
  EXPECT_EQ(down, kSteps * model) << "each element once a step";
  EXPECT_EQ(up, kSteps * 2 * model) << "all of them, to both";
}

// In fp32 the two differ by the order of their sums alone.
TEST(CudaSteps, AreNearToTheHosts) {
  Plugged plugged;
  libmuon::MuonSpec moments = libmuon::MuonSpec::keller();
  moments.second_moment = libmuon::SecondMoment::rows;
  for (const libmuon::MuonSpec& spec :
       {libmuon::MuonSpec::keller(), moments, *libmuon::preset("normuon")})
    for (const DType momentum : {DType::f32, DType::i8}) {
      Training setup = all_on_device(plugged.accelerator());
      setup.model.groups[0] = spec;
      setup.dtypes = {{"momentum_buffer", momentum}};
      const auto there = train_in_two(setup, kSteps);
      const auto host = train_in_two({.dtypes = setup.dtypes, .model = setup.model}, kSteps);
      ASSERT_EQ(there.outcome.error, "");
      EXPECT_LE(apart(there.outcome.weights, host.outcome.weights),
                spec.precision == libmuon::Precision::fp32 ? 1e-5 : 0.05)
          << name_of(momentum);
    }
}

}  // namespace
}  // namespace ebb
