#include "ebb/libswap/store/rank_shares.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace ebb::libswap {
namespace {

std::string shared_out(std::uint32_t ranks, std::vector<double> weights) {
  std::string all;
  const auto shares = share_out(ranks, weights);
  EXPECT_TRUE(shares);
  for (const std::uint32_t directory : *shares) all += std::to_string(directory);
  return all;
}

TEST(RankShares, AreByWeightAndNeighboursShareADirectory) {
  EXPECT_EQ(shared_out(3, {1}), "000");
  EXPECT_EQ(shared_out(4, {1, 1}), "0011");
  EXPECT_EQ(shared_out(4, {3, 1}), "0001");
  EXPECT_EQ(shared_out(4, {1, 3}), "0111");
  EXPECT_EQ(shared_out(8, {7.0, 3.5, 3.5}), "00001122");
  EXPECT_EQ(shared_out(2, {1, 100}), "11") << "too slow to be worth a rank";
  EXPECT_EQ(shared_out(0, {1}), "");
}

// No other number of ranks on any directory would let the slowest of them be done earlier.
TEST(RankShares, NoDirectoryIsDoneLaterThanItMustBe) {
  for (const std::vector<double>& weights :
       {std::vector<double>{6.9, 3.1}, {2, 3, 5}, {1, 1, 1, 7.5}})
    for (std::uint32_t ranks = 1; ranks < 40; ++ranks) {
      std::vector<double> counts(weights.size(), 0);
      const auto shares = share_out(ranks, weights);
      ASSERT_TRUE(shares);
      for (const std::uint32_t directory : *shares) ++counts[directory];
      const auto slowest = [&] {
        double most = 0;
        for (std::size_t i = 0; i < counts.size(); ++i)
          most = std::max(most, counts[i] / weights[i]);
        return most;
      };
      const double found = slowest();
      for (std::size_t from = 0; from < counts.size(); ++from)
        for (std::size_t to = 0; to < counts.size(); ++to) {
          if (counts[from] == 0 || from == to) continue;
          --counts[from], ++counts[to];
          EXPECT_GE(slowest(), found - 1e-12);
          ++counts[from], --counts[to];
        }
    }
}

TEST(RankShares, WeightsThatAreNoneAreRefused) {
  for (const std::vector<double>& weights :
       {std::vector<double>{}, {0}, {1, -1}, {1, std::nan("")}, {HUGE_VAL}}) {
    const auto refused = share_out(2, weights);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::usage);
  }
}

}  // namespace
}  // namespace ebb::libswap
