// Whole trainings on the plugin over the stub: wherever state, gradients and weights lie, one
// result, which is near to the host's.
#include <cmath>

#include "tests/libmuon/cuda/plugged.h"
#include "tests/libmuon/support/training.h"
#include "tests/libmuon/support/world.h"

namespace ebb {
namespace {

using libmuon::Side;
using libswap::Tier;
using test::Plugged;
using test::TempDir;
using test::train;
using test::Training;

constexpr std::uint64_t kSteps = 4;

struct Trained {
  std::vector<float> weights;
  std::map<std::string, std::vector<float>> stored;
  bool operator==(const Trained&) const = default;
};

// Half of the steps, and the rest after a resume.
Trained train_in_two(const Training& setup) {
  const TempDir directory;
  EXPECT_EQ(train(setup, directory.path(), kSteps / 2).error, "");
  const auto outcome = train(setup, directory.path(), kSteps);
  EXPECT_EQ(outcome.error, "");
  return {outcome.weights, test::tensors_of(directory.path())};
}

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
  const Trained on_device = train_in_two(all_on_device(plugged.accelerator()));
  ASSERT_FALSE(on_device.weights.empty());
  std::uint64_t seed = 0;
  for (const Tier master : {Tier::device, Tier::host, Tier::nvme})
    for (const Tier momentum : {Tier::device, Tier::host, Tier::nvme}) {
      const Tier adam = static_cast<Tier>(++seed % 3);
      const Training setup{
          .ranks = 2,
          .chunk_bytes = seed % 3 == 0 ? 5000u : 1u << 28,
          .budget_bytes = (seed % 2 == 0 ? 16u : 64u) * 4096,
          .threads = 1 + static_cast<std::uint32_t>(seed % 2),
          .snapshot_every = 1,
          .accelerator = &plugged.accelerator(),
          .tiers = {{"master", master}, {"momentum_buffer", momentum}, {"exp_avg", adam}},
          .gradients_on = seed % 2 == 0 ? Side::device : Side::host,
          .weights_on = seed % 4 < 2 ? Side::device : Side::host,
          .wire = seed % 8 < 4 ? Side::device : Side::host};
      EXPECT_TRUE(train_in_two(setup) == on_device) << "seed " << seed;
    }
}

// In fp32 the two differ by the order of their sums alone.
TEST(CudaSteps, AreNearToTheHosts) {
  Plugged plugged;
  const auto there = train_in_two(all_on_device(plugged.accelerator())).weights;
  const auto host = train_in_two({}).weights;
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
