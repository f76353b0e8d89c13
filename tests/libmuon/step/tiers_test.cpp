// State at home on a device, on the host or on the disk, computed by a device whose memory is its
// own and whose events come late: the host's bits.
#include <gtest/gtest.h>

#include <string>

#include "tests/libmuon/support/late_accelerator.h"
#include "tests/libmuon/support/training.h"
#include "tests/libmuon/support/world.h"

namespace ebb {
namespace {

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

const std::vector<std::optional<Tier>> kTiers = {std::nullopt, Tier::device, Tier::host,
                                                 Tier::nvme};

std::string text_of(const Tiers& tiers) {
  static const char* const names[] = {"nvme", "host", "device"};
  std::string text;
  for (const auto& [state, tier] : tiers)
    text += state + " " + names[static_cast<std::size_t>(tier)] + ", ";
  return text;
}

TEST(Tiers, OfAllMixesGiveTheSameBits) {
  ASSERT_FALSE(on_the_host().outcome.weights.empty());
  std::uint64_t seed = 1;
  for (const auto momentum : kTiers)
    for (const auto master : kTiers)
      for (const auto adam : kTiers) {
        Tiers tiers;
        if (momentum) tiers["momentum_buffer"] = *momentum;
        if (master) tiers["master"] = *master;
        if (adam) tiers["exp_avg"] = *adam;
        LateAccelerator accelerator(++seed, 50);
        const Training setup{.ranks = 2,
                             .chunk_bytes = seed % 3 == 0 ? 5000u : 1u << 28,
                             .budget_bytes = (seed % 2 == 0 ? 16u : 64u) * 4096,
                             .slots = 2 + static_cast<std::uint32_t>(seed % 2),
                             .threads = 1 + static_cast<std::uint32_t>(seed % 2),
                             .snapshot_every = 1,
                             .accelerator = &accelerator,
                             .tiers = tiers};
        const Trained trained = train_in_two(setup);
        EXPECT_TRUE(trained.outcome == on_the_host().outcome) << text_of(tiers) << "seed " << seed;
        EXPECT_TRUE(trained.stored == on_the_host().stored) << text_of(tiers) << "seed " << seed;
      }
}

// What a plan says of the device's memory is what is allocated there.
TEST(Tiers, TakeTheDeviceMemoryOfThePlan) {
  for (const Tier tier : {Tier::device, Tier::host, Tier::nvme}) {
    LateAccelerator accelerator(7, 0);
    const Training setup{.accelerator = &accelerator,
                         .tiers = {{"master", tier}, {"momentum_buffer", tier}, {"exp_avg", tier}}};
    const TempDir directory;
    const Outcome outcome = train(setup, directory.path(), 2);
    ASSERT_EQ(outcome.error, "");
    EXPECT_EQ(accelerator.device().most_bytes(), outcome.plans[0].device_bytes);
    EXPECT_GT(outcome.plans[0].device_bytes, 0u);
  }
}

// State at home on the device does not travel; what passes through it is copied once each way.
TEST(Tiers, MoveWhatIsNotAtHomeOnTheDeviceAndNothingElse) {
  const auto moved = [](Tier tier) {
    LateAccelerator accelerator(3, 0);
    const Training setup{.accelerator = &accelerator,
                         .tiers = {{"master", tier}, {"momentum_buffer", tier}, {"exp_avg", tier}}};
    const TempDir directory;
    std::array<std::uint64_t, 3> bytes{};
    EXPECT_EQ(train(setup, directory.path(), 0, Finish::just_stop).error, "");
    const auto total = [&] {
      return std::pair(accelerator.device().copied_up(), accelerator.device().copied_down());
    };
    const auto opened = total();
    const Outcome outcome = train(setup, directory.path(), 0, Finish::just_stop);
    const auto resumed = total();
    EXPECT_EQ(train(setup, directory.path(), 3, Finish::just_stop).error, "");
    bytes[0] = total().first - resumed.first - (resumed.first - opened.first);
    bytes[1] = total().second - resumed.second - (resumed.second - opened.second);
    bytes[2] = outcome.plans[0].tiles * setup.tile_bytes;
    return bytes;
  };
  std::uint64_t elems = 0;
  for (const auto& param : test::nuisance_model().params) elems += formats::volume(param.shape);
  const auto at_home = moved(Tier::device);
  EXPECT_EQ(at_home[0], 3 * elems * sizeof(float)) << "gradients up";
  EXPECT_EQ(at_home[1], 3 * elems * sizeof(float)) << "weights down";
  for (const Tier tier : {Tier::host, Tier::nvme}) {
    const auto passing = moved(tier);
    EXPECT_EQ(passing[0], at_home[0] + 3 * passing[2]);
    EXPECT_EQ(passing[1], at_home[1] + 3 * passing[2]);
  }
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
