#include "examples/gpt/batches.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <vector>

namespace ebb::gpt {
namespace {

TEST(Batches, EverySequenceBelongsToExactlyOneRank) {
  for (const std::uint32_t world : {1u, 2u, 3u, 4u, 6u, 12u}) {
    std::uint32_t next = 0;
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      const Share share = share_of(Rank{rank}, world);
      EXPECT_EQ(share.first, next);
      next += share.count;
    }
    EXPECT_EQ(next, kBatch);
  }
}

TEST(Batches, RefusesRanksThatCannotShareEvenly) {
  EXPECT_TRUE(check_ranks(4));
  for (const std::uint64_t world : {0ull, 5ull, 24ull}) {
    const auto refused = check_ranks(world);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().message, "--ranks " + std::to_string(world) +
                                           ": the 12 sequences of a step cannot be shared evenly");
    EXPECT_EQ(refused.error().hint, "use --ranks 1, 2, 3, 4, 6 or 12");
  }
}

TEST(Batches, SequencesLieInsideTheTextAndDifferFromStepToStep) {
  std::vector<std::uint8_t> text(1000);
  std::iota(text.begin(), text.end(), std::uint8_t{0});
  std::set<const std::uint8_t*> places;
  for (std::uint64_t step = 0; step < 10; ++step)
    for (std::uint32_t number = 0; number < kBatch; ++number) {
      const auto sequence = sequence_of(text, 7, step * kBatch + number, 129);
      ASSERT_GE(sequence.data(), text.data());
      ASSERT_LE(sequence.data() + sequence.size(), text.data() + text.size());
      places.insert(sequence.data());
    }
  EXPECT_GT(places.size(), 90u);
}

TEST(Batches, TheShortestTextIsItsOwnSequence) {
  const std::vector<std::uint8_t> text(129);
  EXPECT_EQ(sequence_of(text, 7, 41, 129).data(), text.data());
}

}  // namespace
}  // namespace ebb::gpt
