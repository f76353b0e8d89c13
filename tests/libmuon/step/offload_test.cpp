// A trainer on a device whose optimizer is the host: what crosses between them and what the device
// keeps, counted on the device's double.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/libmuon/support/failing_world.h"
#include "tests/libmuon/support/late_accelerator.h"
#include "tests/libmuon/support/offloaded_rank.h"

namespace ebb {
namespace {

using libswap::Buffer;
using libswap::LateDevice;
using test::OffloadedRank;
using test::Training;
using test::World;

constexpr std::uint64_t kSteps = 3;

OffloadedRank::Compute on(LateDevice& device) {
  return [&device](const Buffer& to, std::function<void(std::span<float>)> values) {
    return device.compute({}, [&device, to, values = std::move(values)] {
      std::vector<float> made(to.elems);
      values(made);
      std::ranges::copy(std::as_bytes(std::span(made)), device.open(to).begin());
    });
  };
}

struct Counted {
  std::uint64_t down = 0, up = 0, inside = 0, most = 0;  // of all steps; bytes
  std::uint64_t gradients = 0, weights = 0;              // of all ranks; bytes
  std::vector<float> of_rank_0;
};

Counted offloaded(const Training& setup) {
  Counted counted;
  LateDevice device(3, 50);
  {
    World world(libswap::make_memory_backend(libswap::MemoryDisk::create(test::kMuch)), "/swap",
                setup.ranks);
    std::vector<std::uint64_t> gradients(setup.ranks), weights(setup.ranks);
    test::expect_well(world.run([&](libmuon::Communicator& ranks) -> Result<> {
      const std::uint32_t me = index_of(ranks.rank());
      EBB_TRY_ASSIGN(auto rank,
                     OffloadedRank::open(world, ranks, test::config_of(setup, setup.model), device,
                                         on(device)));
      for (std::uint64_t step = 0; step < kSteps; ++step) EBB_TRY(rank.step());
      gradients[me] = rank.gradient_bytes();
      weights[me] = rank.weight_bytes();
      if (me == 0) counted.of_rank_0 = rank.weights();
      EBB_TRY(ranks.agree(0));  // all memory is there until all have counted
      return {};
    }));
    for (std::uint32_t rank = 0; rank < setup.ranks; ++rank) {
      counted.gradients += gradients[rank];
      counted.weights += weights[rank];
    }
  }
  counted.down = device.copied_down();
  counted.up = device.copied_up();
  counted.inside = device.copied_inside();
  counted.most = device.most_bytes();
  return counted;
}

// Paged momentum and resident, in fp32 and bf16: nothing of it is ever on the device.
TEST(Offload, OneGradientComesDownAndOneWeightGoesUpAStepAndMomentumStaysOnTheHost) {
  for (const Policy gradients : {Policy::zero12, Policy::zero12_boundary})
    for (const std::uint64_t budget : {std::uint64_t{4} * 4096, std::uint64_t{1} << 28})
      for (const DType momentum : {DType::f32, DType::bf16}) {
        const Training setup{.ranks = 2,
                             .gradients = gradients,
                             .chunk_bytes = 20000,
                             .budget_bytes = budget,
                             .max_norm = 3,
                             .dtypes = {{"momentum_buffer", momentum}}};
        const test::TempDir directory;
        const test::Outcome wanted = train(setup, directory.path(), kSteps);
        ASSERT_EQ(wanted.error, "");
        const Counted counted = offloaded(setup);
        std::uint64_t model = 0;
        for (const auto& param : setup.model.params) model += 4 * formats::volume(param.shape);
        EXPECT_EQ(counted.gradients, model) << "each element at one rank";
        EXPECT_EQ(counted.weights, 2 * model) << "all of them at both";
        const std::uint64_t read = model;  // by this test, at last
        EXPECT_EQ(counted.down, kSteps * counted.gradients + read);
        EXPECT_EQ(counted.up, kSteps * counted.weights);
        EXPECT_EQ(counted.inside, 0u);
        EXPECT_LE(counted.most, counted.gradients + counted.weights);
        EXPECT_TRUE(counted.of_rank_0 == wanted.weights);
      }
}

// Where the device computes, too: what it holds of momentum at home on the host is on its way.
TEST(Offload, MomentumOfMoreMatricesTakesNoMoreOfADeviceThatComputes) {
  const auto most_bytes = [](std::uint32_t layers) {
    Training setup{.chunk_bytes = 20000, .model = {}};
    setup.model.groups = {libmuon::MuonSpec::keller()};
    for (std::uint32_t i = 0; i < layers; ++i)
      setup.model.params.push_back({compose("layer.{}", i), {96, 24}, 0});
    test::LateAccelerator accelerator(7, 20);
    setup.accelerator = &accelerator;
    setup.tiers = {{"momentum_buffer", libswap::Tier::host}, {"master", libswap::Tier::host}};
    const test::TempDir directory;
    EXPECT_EQ(train(setup, directory.path(), 2).error, "");
    return accelerator.device().most_bytes();
  };
  EXPECT_GT(most_bytes(4), 0u);
  EXPECT_EQ(most_bytes(4), most_bytes(32));
}

}  // namespace
}  // namespace ebb
