// A trainer whose gradients and weights lie on the device that computes: they are read when they
// are there, wherever and however they travel, and the norm is taken where they lie.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "ebb/libmuon/kernels/kernels.h"
#include "tests/libmuon/support/failing_world.h"
#include "tests/libmuon/support/late_accelerator.h"
#include "tests/libmuon/support/trainer_buffer.h"

namespace ebb {
namespace {

using libmuon::Look;
using libmuon::LookRange;
using libmuon::Side;
using libswap::Buffer;
using test::LateAccelerator;
using test::Outcome;
using test::TempDir;
using test::train;
using test::TrainerBuffer;
using test::Training;

// Numbers of all sizes, or one that is none, in ranges of any length; some are of copies.
TEST(TrainerOnADevice, IsLookedAtAsOnTheHost) {
  LateAccelerator accelerator(9, 20);
  const auto pool = libswap::Pool::start(2);
  ASSERT_TRUE(pool);
  auto kernels = accelerator.kernels({**pool});
  ASSERT_TRUE(kernels);
  std::mt19937 random(11);
  for (int round = 0; round < 30; ++round) {
    libmuon::ExactSum sum;
    double largest = 0;
    std::vector<TrainerBuffer> buffers;
    std::vector<LookRange> ranges;
    std::vector<libswap::Event> there;
    for (const std::uint64_t elems : {1u, 70u, 5000u, 200000u}) {
      TrainerBuffer& buffer = buffers.emplace_back(&accelerator.device(), elems);
      const double limit = std::ldexp(1.0, static_cast<int>(random() % 100));
      const bool in_norm = random() % 3 != 0;
      for (float& value : buffer.values())
        value = std::ldexp(static_cast<float>(random()), static_cast<int>(random() % 120) - 100);
      if (round % 3 == 1 && elems == 5000)
        buffer.values()[random() % elems] = round % 2 == 0
                                                ? std::numeric_limits<float>::quiet_NaN()
                                                : -std::numeric_limits<float>::infinity();
      for (const float value : buffer.values())
        largest = std::isfinite(value) ? std::max(largest, std::fabs(double{value}) / limit)
                                       : std::numeric_limits<double>::infinity();
      if (in_norm) sum.add(buffer.values());
      ranges.push_back({buffer.buffer(), limit, in_norm});
      there.push_back(buffer.send());
    }
    TrainerBuffer room(&accelerator.device(), sizeof(Look) / sizeof(float));
    const Buffer found = room.buffer().as(DType::u8);
    (*pool)->help_until((*kernels)->look(ranges, found, there));
    Look look;
    std::ranges::copy(std::as_bytes(room.fetch()),
                      std::as_writable_bytes(std::span(&look, 1)).begin());
    libmuon::ExactSum mine{.limbs = look.squares};
    mine.carry();
    EXPECT_EQ(mine.limbs, sum.limbs) << round;
    EXPECT_EQ(look.largest, largest) << round;
  }
}

// What would overflow on one rank alone is a step that no rank makes.
TEST(TrainerOnADevice, SkipsWhatWouldOverflowOnAnyRank) {
  test::FailingWorld failing;
  LateAccelerator accelerator(2, 20);
  auto config = test::config_with(test::kMuch);
  config.accelerator = &accelerator;
  config.gradients_on = config.weights_on = Side::device;
  test::expect_well(failing.world.run([&](libmuon::Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(const auto engine,
                   libmuon::Engine::open(config, ranks, failing.world.io(), failing.world.swap(),
                                         {.initial = test::noisy_weights}));
    const auto& plan = engine->state_plan();
    std::vector<TrainerBuffer> weights, gradients;
    for (std::uint32_t param = 0; param < config.model.params.size(); ++param) {
      weights.emplace_back(&accelerator.device(), plan.weights().local_elems(param, ranks.rank()));
      gradients.emplace_back(&accelerator.device(),
                             plan.gradients().local_elems(param, ranks.rank()));
      EBB_TRY(engine->bind_weights(param, weights.back().buffer()));
    }
    EBB_TRY(engine->install_weights());
    for (const float largest : {1e15f, 1.0f})
      for (const double scale : {1e9, 1.0}) {
        for (std::uint32_t param = 0; param < gradients.size(); ++param) {
          const auto values = gradients[param].values();
          std::ranges::fill(values, 0.5f);
          if (ranks.rank() == Rank{1} && !values.empty()) values.back() = largest;
          EBB_TRY(
              engine->gradient_ready(param, gradients[param].buffer(), gradients[param].send()));
        }
        EBB_TRY_ASSIGN(const auto result, engine->step({.inv_scale = scale}));
        EXPECT_EQ(result.skipped, largest > 1 && scale > 1) << largest << " " << scale;
      }
    return {};
  }));
}

TEST(TrainerOnADevice, IsRefusedWhereItsMemoryIsNotThatOfTheSettings) {
  test::FailingWorld failing;
  LateAccelerator accelerator(1), another(2);
  auto config = test::config_with(test::kMuch);
  config.accelerator = &accelerator;
  config.gradients_on = Side::device;
  const auto refused = [&](const Result<>& answer, const std::string& words) {
    test::expect_error(answer, Code::usage, words);
    EXPECT_NE(answer.error().message.find(words), std::string::npos) << answer.error().message;
  };
  test::expect_well(failing.world.run([&](libmuon::Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(const auto engine,
                   libmuon::Engine::open(config, ranks, failing.world.io(), failing.world.swap(),
                                         {.initial = test::noisy_weights}));
    const auto& plan = engine->state_plan();
    constexpr std::uint32_t kSplit = 5;  // both ranks have some of it
    const std::uint64_t gradient = plan.gradients().local_elems(kSplit, ranks.rank());
    const std::uint64_t weight = plan.weights().local_elems(kSplit, ranks.rank());
    const std::string where = compose("blk.0.up on rank {}: ", index_of(ranks.rank()));
    TrainerBuffer host(nullptr, gradient), other(&another.device(), gradient);
    TrainerBuffer device(&accelerator.device(), weight);
    refused(engine->gradient_ready(kSplit, host.buffer()),
            "gradient of " + where + "it lies in the memory of the host");
    refused(engine->gradient_ready(kSplit, other.buffer()),
            where + "it lies in the memory of late");
    refused(engine->bind_weights(kSplit, device.buffer()), where + "it lies in the memory of late");
    refused(engine->bind_weights(kSplit, device.buffer().as(DType::i32)), where + "I32 elements");
    return {};
  }));
}

}  // namespace
}  // namespace ebb
