// A trainer on a device whose optimizer is the host: what crosses between them and what the device
// keeps, counted on the device's double.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/libmuon/support/failing_world.h"
#include "tests/libmuon/support/late_accelerator.h"

namespace ebb {
namespace {

using libmuon::Engine;
using libmuon::EngineConfig;
using libswap::Buffer;
using libswap::Event;
using libswap::LateDevice;
using test::Training;
using test::World;

constexpr std::uint64_t kSteps = 3;

// One rank's part of the model there: backward writes gradients, forward reads weights. The engine
// has neither; the trainer copies a parameter when backward has made it, and back when it is new.
class OffloadedRank {
 public:
  static Result<OffloadedRank> open(World& world, libmuon::Communicator& ranks,
                                    const EngineConfig& config, LateDevice& device) {
    OffloadedRank one(device);
    EBB_TRY_ASSIGN(one.engine_, Engine::open(config, ranks, world.io(), world.swap(),
                                             test::noisy_weights, nullptr));
    const libmuon::StatePlan& plan = one.engine_->state_plan();
    one.params_.resize(config.model.params.size());
    for (std::uint32_t param = 0; param < one.params_.size(); ++param) {
      Param& mine = one.params_[param];
      mine.held = plan.gradients().held(param, ranks.rank());
      mine.gradient.resize(mine.held.count);
      mine.weight.resize(plan.weights().local_elems(param, ranks.rank()));
      EBB_TRY_ASSIGN(mine.device_gradient, device.allocate(bytes_of(mine.gradient)));
      EBB_TRY_ASSIGN(mine.device_weight, device.allocate(bytes_of(mine.weight)));
      EBB_TRY(one.engine_->bind_weights(param, mine.weight));
    }
    EBB_TRY(one.engine_->install_weights());
    return one;
  }

  Result<> step() {
    const std::uint64_t number = engine_->step_count() + 1;
    for (std::uint32_t param = 0; param < params_.size(); ++param) {
      Param& mine = params_[param];
      const Event made = backward(param, number);
      const Event down = device_.copy(floats(mine.device_gradient),
                                      libswap::buffer_of(std::span(mine.gradient)), made);
      EBB_TRY(engine_->gradient_ready(param, libswap::buffer_of(std::span(mine.gradient)), down));
    }
    EBB_TRY(engine_->begin_step({.max_norm = 3}));
    std::vector<Event> up;
    for (std::uint32_t param = 0; param < params_.size(); ++param) {
      Param& mine = params_[param];
      EBB_TRY(engine_->weights_ready(param));
      up.push_back(
          device_.copy(libswap::buffer_of(std::span(mine.weight)), floats(mine.device_weight), {}));
    }
    for (const Event& one : up) one.wait();
    EBB_TRY(engine_->wait_step());
    return {};
  }

  // As the device has them.
  std::vector<float> weights() const {
    std::vector<float> all;
    for (const Param& mine : params_) {
      const std::size_t first = all.size();
      all.resize(first + mine.weight.size());
      std::ranges::copy(
          device_.open(floats(mine.device_weight)),
          std::as_writable_bytes(std::span(all).subspan(first, mine.weight.size())).begin());
    }
    return all;
  }
  std::uint64_t gradient_bytes() const { return sum(&Param::gradient); }
  std::uint64_t weight_bytes() const { return sum(&Param::weight); }

 private:
  struct Param {
    FlatRange held;
    libswap::DeviceMemory device_gradient, device_weight;
    std::vector<float> gradient, weight;
  };
  explicit OffloadedRank(LateDevice& device) : device_(device) {}

  static std::uint64_t bytes_of(const std::vector<float>& values) {
    return values.size() * sizeof(float);
  }
  static Buffer floats(const libswap::DeviceMemory& memory) {
    return memory.buffer().as(DType::f32);
  }
  std::uint64_t sum(std::vector<float> Param::* which) const {
    std::uint64_t bytes = 0;
    for (const Param& mine : params_) bytes += bytes_of(mine.*which);
    return bytes;
  }
  Event backward(std::uint32_t param, std::uint64_t step) {
    const Param& mine = params_[param];
    return device_.compute(
        {}, [this, param, step, held = mine.held, to = floats(mine.device_gradient)] {
          std::vector<float> values(held.count);
          for (std::uint64_t i = 0; i < held.count; ++i)
            values[i] = test::noise(param, step, held.first + i);
          std::ranges::copy(std::as_bytes(std::span(values)), device_.open(to).begin());
        });
  }

  LateDevice& device_;
  std::unique_ptr<Engine> engine_;
  std::vector<Param> params_;
};

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
      EBB_TRY_ASSIGN(auto rank, OffloadedRank::open(world, ranks,
                                                    test::config_of(setup, setup.model), device));
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
        EXPECT_EQ(counted.down, kSteps * counted.gradients);
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
