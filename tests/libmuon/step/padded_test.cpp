// Trainers that keep their parts in buckets with padding: what lies between the parts is neither
// read nor written, even where it is NaN.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/libmuon/support/failing_world.h"

namespace ebb {
namespace {

using libmuon::Engine;
using test::Training;

// One rank's buffer of a layout: all padding is NaN.
class Bucket {
 public:
  Bucket(const Layout& layout, Rank rank)
      : layout_(layout),
        rank_(rank),
        values_(layout.buffer_elems(rank), std::numeric_limits<float>::quiet_NaN()) {}

  std::span<float> part(std::size_t tensor) {
    return std::span(values_).subspan(layout_.buffer_first(tensor, rank_),
                                      layout_.local_elems(tensor, rank_));
  }
  std::uint64_t poisoned() const {
    return static_cast<std::uint64_t>(
        std::ranges::count_if(values_, [](float value) { return std::isnan(value); }));
  }

 private:
  const Layout& layout_;
  Rank rank_;
  std::vector<float> values_;
};

void expect_padding_to_stay(libmuon::Placement placement) {
  for (const Policy policy :
       {Policy::zero12, Policy::zero12_boundary, Policy::zero3, Policy::rows}) {
    const Training setup{
        .ranks = 4, .gradients = policy, .weights = policy, .placement = placement, .max_norm = 2};
    const test::TempDir directory;
    const test::Outcome wanted = train(setup, directory.path(), 2);
    ASSERT_EQ(wanted.error, "");
    const auto config = test::config_of(setup, setup.model);
    test::World world(libswap::make_memory_backend(libswap::MemoryDisk::create(test::kMuch)),
                      "/swap", setup.ranks);
    test::expect_well(world.run([&](libmuon::Communicator& ranks) -> Result<> {
      const Rank rank = ranks.rank();
      EBB_TRY_ASSIGN(const auto engine, Engine::open(config, ranks, world.io(), world.swap(),
                                                     test::noisy_weights, nullptr));
      const Layout& layout = engine->state_plan().gradients().layouts().front();
      const std::uint64_t padding = layout.padding_elems(rank);
      Bucket weights(layout, rank), gradients(layout, rank);
      for (std::uint32_t param = 0; param < config.model.params.size(); ++param)
        EBB_TRY(engine->bind_weights(param, weights.part(param)));
      EBB_TRY(engine->install_weights());
      for (std::uint64_t step = 1; step <= 2; ++step) {
        for (std::uint32_t param = 0; param < config.model.params.size(); ++param) {
          const std::span<float> part = gradients.part(param);
          const std::uint64_t first = layout.held(param, rank).first;
          for (std::uint64_t i = 0; i < part.size(); ++i)
            part[i] = test::noise(param, step, first + i);
          EBB_TRY(engine->gradient_ready(param, part));
        }
        EBB_TRY_ASSIGN(const auto result, engine->step({.max_norm = setup.max_norm}));
        EXPECT_FALSE(result.skipped) << name_of(policy);
      }
      EXPECT_EQ(weights.poisoned(), padding) << name_of(policy);
      EXPECT_EQ(gradients.poisoned(), padding) << name_of(policy);
      if (rank != Rank{0}) return {};
      std::vector<float> all;
      for (std::uint32_t param = 0; param < config.model.params.size(); ++param)
        all.insert(all.end(), weights.part(param).begin(), weights.part(param).end());
      EXPECT_EQ(all, wanted.weights) << name_of(policy);
      return {};
    }));
  }
}

TEST(PaddedBuckets, AreReadAndWrittenWhereThePartsLieOnly) {
  for (const auto placement : test::kPlacements) expect_padding_to_stay(placement);
}

}  // namespace
}  // namespace ebb
