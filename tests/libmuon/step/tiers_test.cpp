// State at home on a device, on the host or on the disk, computed by a device whose memory is its
// own and whose events come late: the host's bits.
#include <gtest/gtest.h>

#include <string>

#include "ebb/libmuon/plan/chunks.h"
#include "ebb/libmuon/spec/presets.h"
#include "tests/libmuon/support/late_accelerator.h"
#include "tests/libmuon/support/training.h"
#include "tests/libmuon/support/world.h"

namespace ebb {
namespace {

using libmuon::Side;
using libswap::Tier;
using test::Finish;
using test::LateAccelerator;
using test::Outcome;
using test::TempDir;
using test::train;
using test::Training;
using Tiers = decltype(libmuon::EngineConfig::tiers);

constexpr std::uint64_t kSteps = 4;

struct Trained {
  Outcome outcome;
  std::map<std::string, std::vector<float>> stored;
};

// Half of the steps, and the rest after a resume.
Trained train_in_two(const Training& setup) {
  const TempDir directory;
  const Outcome half = train(setup, directory.path(), kSteps / 2);
  EXPECT_EQ(half.error, "");
  Trained trained{train(setup, directory.path(), kSteps), test::tensors_of(directory.path())};
  EXPECT_EQ(trained.outcome.error, "");
  return trained;
}

const Trained& on_the_host() {
  static const Trained trained = train_in_two({});
  return trained;
}

// Where the trainer keeps its gradients and weights, and what memory the ranks take: way 0 to 7.
struct Ways {
  Side gradients, weights, wire;
  explicit Ways(std::uint64_t number)
      : gradients(side(number & 1)), weights(side(number & 2)), wire(side(number & 4)) {}
  static Side side(std::uint64_t bit) { return bit == 0 ? Side::device : Side::host; }
};

std::string text_of(const Ways& ways) {
  const auto name = [](Side side) { return side == Side::host ? "host" : "device"; };
  return compose("gradients {}, weights {}, wire {}, ", name(ways.gradients), name(ways.weights),
                 name(ways.wire));
}

std::uint64_t model_bytes() {
  std::uint64_t elems = 0;
  for (const auto& param : test::nuisance_model().params) elems += formats::volume(param.shape);
  return elems * sizeof(float);
}

// What a plan says of the device's memory is what is allocated there, beside the trainer's own.
TEST(Tiers, TakeTheDeviceMemoryOfThePlan) {
  for (const Tier tier : {Tier::device, Tier::host, Tier::nvme})
    for (std::uint64_t number = 0; number < 16; ++number) {
      const Ways ways(number % 8);
      LateAccelerator accelerator(7, 0);
      Training setup{.ranks = 2,
                     .placement = test::kPlacements[number / 8],
                     .chunk_bytes = 20000,
                     .accelerator = &accelerator,
                     .tiers = {{"master", tier}, {"momentum_buffer", tier}, {"exp_avg", tier}},
                     .gradients_on = ways.gradients,
                     .weights_on = ways.weights,
                     .wire = ways.wire};
      setup.model.groups[0] = *libmuon::preset("keller");  // in bf16
      const TempDir directory;
      const Outcome outcome = train(setup, directory.path(), 2);
      ASSERT_EQ(outcome.error, "");
      std::uint64_t wanted = 0;
      for (const auto& plan : outcome.plans) wanted += plan.device_bytes;
      if (ways.gradients == Side::device) wanted += model_bytes();
      if (ways.weights == Side::device) wanted += 2 * model_bytes();
      EXPECT_EQ(accelerator.device().most_bytes(), wanted) << text_of(ways);
    }
}

struct Moved {
  std::uint64_t up = 0, down = 0, inside = 0;  // bytes of three steps
  std::uint64_t tile_bytes = 0;                // of all tiles
};

Moved moved(Training setup, Tier tier) {
  LateAccelerator accelerator(3, 0);
  setup.accelerator = &accelerator;
  setup.tiers = {{"master", tier}, {"momentum_buffer", tier}, {"exp_avg", tier}};
  const TempDir directory;
  const libswap::LateDevice& device = accelerator.device();
  const auto total = [&] {
    return Moved{device.copied_up(), device.copied_down(), device.copied_inside()};
  };
  EXPECT_EQ(train(setup, directory.path(), 0, Finish::just_stop).error, "");
  const Moved opened = total();
  const Outcome outcome = train(setup, directory.path(), 0, Finish::just_stop);
  const Moved resumed = total();
  EXPECT_EQ(train(setup, directory.path(), 3, Finish::just_stop).error, "");
  const Moved stepped = total();
  return {stepped.up - resumed.up - (resumed.up - opened.up),
          stepped.down - resumed.down - (resumed.down - opened.down),
          stepped.inside - resumed.inside - (resumed.inside - opened.inside),
          outcome.plans[0].tiles * setup.tile_bytes};
}

libmuon::StatePlan plan_of(const Training& setup, std::uint32_t rank) {
  const auto config = test::config_of(setup, setup.model);
  auto plan = libmuon::StatePlan::make(config.model, config.partition, config.tile_bytes,
                                       Rank{rank}, config.chunk_bytes);
  EXPECT_TRUE(plan);
  return *std::move(plan);
}

// Of a step: whether an item's O is finite is a number of 32 bits, and looked at on the host.
std::uint64_t flag_bytes(const Training& setup) {
  std::uint64_t items = 0;
  for (std::uint32_t rank = 0; rank < setup.ranks; ++rank)
    items += plan_of(setup, rank).order().updates();
  return items * sizeof(std::uint32_t);
}

// State at home on the device does not travel; what passes through it is copied once each way.
TEST(Tiers, MoveWhatIsNotAtHomeOnTheDeviceAndNothingElse) {
  const Moved at_home = moved({}, Tier::device);
  EXPECT_EQ(at_home.up, 3 * model_bytes()) << "gradients up";
  EXPECT_EQ(at_home.down, 3 * (model_bytes() + flag_bytes({}))) << "weights down";
  for (const Tier tier : {Tier::host, Tier::nvme}) {
    const Moved passing = moved({}, tier);
    EXPECT_EQ(passing.up, at_home.up + 3 * passing.tile_bytes);
    EXPECT_EQ(passing.down, at_home.down + 3 * passing.tile_bytes);
  }
}

// Two ranks whose trainers keep gradients and weights on the device. What a step finds of the norm,
// and of each O, comes down; nothing else where the ranks take the device's memory, else what
// travels, once.
TEST(Tiers, OfATrainerOnTheDeviceMoveNothingOrWhatTravels) {
  const Training setup{.ranks = 2, .gradients_on = Side::device, .weights_on = Side::device};
  std::uint64_t gathered = 0;  // bytes of gradients that their owners' trainers do not hold whole
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    const libmuon::StatePlan plan = plan_of(setup, rank);
    for (std::uint32_t param = 0; param < plan.params(); ++param) {
      const std::uint64_t elems = formats::volume(plan.owners().tensors()[param]);
      for (const FlatRange part :
           libmuon::staged_parts(plan, plan.gradients(), {param, {0, elems}}))
        gathered += part.count * 4;
    }
  }
  ASSERT_GT(gathered, 0u);
  const std::uint64_t model = model_bytes(), looks = 2 * sizeof(libmuon::Look) + flag_bytes(setup);
  const Moved inside = moved(setup, Tier::device);
  EXPECT_EQ(inside.up, 3 * model) << "the trainer's own gradients";
  EXPECT_EQ(inside.down, 3 * looks);
  EXPECT_EQ(inside.inside, 3 * (gathered + model));
  Training on_host = setup;
  on_host.wire = Side::host;
  const Moved bounced = moved(on_host, Tier::device);
  EXPECT_EQ(bounced.up, 3 * (model + gathered + model));
  EXPECT_EQ(bounced.down, 3 * (looks + gathered + model));
  EXPECT_EQ(bounced.inside, 0u);
}

TEST(Tiers, ThatCannotBeAreRefusedByName) {
  const auto refused = [](const Tiers& tiers, std::uint64_t device_budget) {
    LateAccelerator accelerator(1);
    const Training setup{.accelerator = &accelerator, .tiers = tiers};
    auto config = test::config_of(setup, setup.model);
    config.device_budget_bytes = device_budget;
    const auto plan = libmuon::Engine::plan(config, Rank{0});
    return plan ? "" : plan.error().message;
  };
  constexpr std::uint64_t kAll = ~std::uint64_t{0};
  EXPECT_EQ(refused({}, kAll), "");
  EXPECT_NE(refused({{"exp_vg", Tier::host}}, kAll).find("exp_vg"), std::string::npos);
  EXPECT_NE(refused({{"exp_avg", Tier::host}, {"exp_avg_sq", Tier::nvme}}, kAll).find("one tile"),
            std::string::npos);
  EXPECT_NE(refused({{"master", Tier::device}}, 1000).find("1000 bytes of the device"),
            std::string::npos);
}

// Without an accelerator the device's memory is the host's.
TEST(Tiers, OfADeviceAreTheHostsWithoutOne) {
  const Trained trained =
      train_in_two({.tiers = {{"master", Tier::device}, {"momentum_buffer", Tier::nvme}}});
  EXPECT_TRUE(trained.outcome == on_the_host().outcome);
  EXPECT_EQ(trained.outcome.plans[0].device_bytes, 0u);
}

}  // namespace
}  // namespace ebb
