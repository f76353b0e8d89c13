#include "examples/gpt/reduce.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <thread>

namespace ebb::gpt {
namespace {

// Sequence `number`'s gradient: values of very different size, so that order shows in the last
// bits.
std::vector<float> gradient_of(std::uint32_t number, std::uint64_t elems) {
  std::vector<float> gradient(elems);
  for (std::uint64_t i = 0; i < elems; ++i)
    gradient[i] = random_float(number, i) * std::exp2(8.0f * random_float(number + 100, i));
  return gradient;
}

// The whole mean, put together from what `world` ranks computed.
std::vector<float> mean_over(std::uint32_t world, std::uint64_t elems) {
  std::vector<float> whole(elems);
  auto ranks = libmuon::make_thread_ranks(world);
  std::vector<std::thread> threads;
  for (std::uint32_t r = 0; r < world; ++r)
    threads.emplace_back([&, r] {
      const Rank rank{r};
      const Share share = share_of(rank, world);
      std::vector<std::vector<float>> mine;
      for (std::uint32_t i = 0; i < share.count; ++i)
        mine.push_back(gradient_of(share.first + i, elems));
      GradientMean mean(*ranks[r], elems);
      // In two parts, the last first.
      for (const FlatRange part : {FlatRange{elems / 3, elems - elems / 3}, {0, elems / 3}}) {
        const auto reduced = mean.reduce(mine, part);
        EBB_CHECK(reduced.has_value());
        const FlatRange place = formats::overlap(slice_of(elems, rank, world), part);
        EBB_CHECK(reduced->size() == place.count);
        std::copy(reduced->begin(), reduced->end(), whole.data() + place.first);
      }
    });
  for (std::thread& thread : threads) thread.join();
  return whole;
}

TEST(GradientMean, HasTheSameBitsForAnyRankCount) {
  const std::uint64_t elems = 10'007;  // prime: no world divides it
  const std::vector<float> alone = mean_over(1, elems);
  for (const std::uint32_t world : {2u, 3u, 4u, 6u, 12u}) {
    const std::vector<float> shared = mean_over(world, elems);
    EXPECT_EQ(std::memcmp(alone.data(), shared.data(), elems * sizeof(float)), 0) << world;
  }
}

TEST(GradientMean, AddsInAscendingSequenceOrder) {
  const std::uint64_t elems = 100;
  const std::vector<float> mean = mean_over(4, elems);
  for (std::uint64_t i = 0; i < elems; ++i) {
    float sum = gradient_of(0, elems)[i];
    for (std::uint32_t s = 1; s < kBatch; ++s) sum += gradient_of(s, elems)[i];
    EXPECT_EQ(mean[i], sum * (1.0f / kBatch)) << i;
  }
}

TEST(GradientMean, FewerElementsThanRanksLeaveEmptySlices) {
  EXPECT_EQ(mean_over(4, 2), mean_over(1, 2));
  EXPECT_EQ(slice_of(2, Rank{3}, 4).count, 0u);
}

TEST(GradientMean, SlicesCoverTheVectorOnce) {
  for (const std::uint32_t world : {1u, 2u, 3u, 4u}) {
    std::uint64_t next = 0;
    for (std::uint32_t r = 0; r < world; ++r) {
      const FlatRange slice = slice_of(853'120, Rank{r}, world);
      EXPECT_EQ(slice.first, next);
      next += slice.count;
    }
    EXPECT_EQ(next, 853'120u);
  }
}

}  // namespace
}  // namespace ebb::gpt
