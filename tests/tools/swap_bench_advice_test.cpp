// swap-bench's advice as a function of what was measured.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>

#include "tools/swap_bench/advice.h"
#include "tools/swap_bench/report.h"

namespace ebb::tools::swap_bench {
namespace {

using formats::KiB;
using formats::MiB;

struct Blocks {
  std::uint64_t bytes;
  std::uint32_t depth;
  bool operator<(const Blocks& other) const {
    return std::tuple(bytes, depth) < std::tuple(other.bytes, other.depth);
  }
};
constexpr Blocks kAll[] = {{256 * KiB, 1}, {256 * KiB, 4}, {256 * KiB, 8}, {256 * KiB, 16},
                           {MiB, 1},       {MiB, 4},       {MiB, 8},       {MiB, 16},
                           {4 * MiB, 1},   {4 * MiB, 4},   {4 * MiB, 8},   {4 * MiB, 16},
                           {16 * MiB, 1},  {16 * MiB, 4}};

// A disk that gives so much, by setting, and how much that varies: by itself, and with the time,
// for all settings alike.
struct Disk {
  std::map<Blocks, double> rates = {};
  double noise = 0, drift = 0;
  double at(const Blocks& blocks) const {
    const auto found = rates.find(blocks);
    return found == rates.end() ? 2e9 : found->second;
  }
};

Sweep measured(const Disk& disk, std::mt19937& random, std::uint32_t rounds = 7) {
  std::normal_distribution<double> normal;
  std::vector<std::vector<double>> mixed(std::size(kAll));
  for (std::uint32_t round = 0; round < rounds; ++round) {
    const double now = std::exp(disk.drift * normal(random));
    for (std::size_t i = 0; i < std::size(kAll); ++i)
      mixed[i].push_back(disk.at(kAll[i]) * now * std::exp(disk.noise * normal(random)));
  }
  Sweep sweep{.backend = "io_uring", .rounds = rounds, .seconds = 20};
  sweep.info.direct = true;
  for (std::size_t i = 0; i < std::size(kAll); ++i) {
    const Rate rate = rate_of(mixed[i]);
    sweep.rows.push_back(
        {{static_cast<std::uint32_t>(kAll[i].bytes), kAll[i].depth}, {rate, rate, rate}});
  }
  sweep.page_cache = sweep.small_pages = sweep.usual();
  return sweep;
}

// Of how many disks six repetitions agreed, all on this.
int agreed(const Disk& disk, const Blocks& on, int disks) {
  std::mt19937 random(7);
  int all = 0;
  for (int i = 0; i < disks; ++i) {
    bool same = true;
    for (int repetition = 0; repetition < 6; ++repetition) {
      const Row use = advice_of(measured(disk, random)).use;
      same = same && use.setting.operation_bytes == on.bytes && use.setting.depth == on.depth;
    }
    all += same ? 1 : 0;
  }
  return all;
}

constexpr Blocks kUsual = {kUsualBlock, kUsualDepth};

TEST(SwapBenchAdvice, SixNoisyRepetitionsOfOneDiskGiveOneAnswer) {
  std::map<Blocks, double> saturating;
  for (const Blocks& blocks : kAll)
    saturating[blocks] =
        2e9 * std::min(1.0, 0.2 + static_cast<double>(blocks.bytes * blocks.depth) / (16 << 20));
  for (const double noise : {0.01, 0.05, 0.1, 0.25, 0.5})
    for (const double drift : {0.0, 0.1, 0.3}) {
      EXPECT_GE(agreed({.noise = noise, .drift = drift}, kUsual, 100), 97) << noise << " " << drift;
      EXPECT_GE(agreed({saturating, noise, drift}, kUsual, 100), 97) << noise << " " << drift;
    }
}

TEST(SwapBenchAdvice, ASettingThatIsFasterBeyondTheSpreadIsTheAnswerEachTime) {
  for (const Blocks& fast : kAll) {
    if (fast.bytes == kUsualBlock && fast.depth == kUsualDepth) continue;
    EXPECT_GE(agreed({{{fast, 6e9}}, 0.1, 0.0}, fast, 100), 97) << fast.bytes << " " << fast.depth;
    EXPECT_GE(agreed({{{fast, 2.6e9}}, 0.02, 0.02}, fast, 100), 97);
    // Three per cent are nothing to change a setting for, however surely they are measured.
    EXPECT_EQ(agreed({{{fast, 2.06e9}}, 0.001, 0.0}, kUsual, 100), 100);
  }
}

TEST(SwapBenchAdvice, OfSettingsThatAreAlikeItIsTheOneWithTheLeastInFlight) {
  std::map<Blocks, double> deep;
  for (const Blocks& blocks : kAll)
    if (blocks.depth == 1) deep[blocks] = 6e9;
  EXPECT_GE(agreed({deep, 0.02, 0.0}, {256 * KiB, 1}, 100), 97);
}

std::string said(const Sweep& sweep) { return report_text("/d", sweep, std::nullopt); }

TEST(SwapBenchAdvice, TheVerdictIsSaidInWordsWithTheSpread) {
  std::mt19937 random(3);
  const Sweep even = measured({.noise = 0.2}, random);
  EXPECT_EQ(advice_of(even).verdict, Verdict::no_clear_winner);
  EXPECT_NE(said(even).find("no clear winner: "), std::string::npos) << said(even);
  EXPECT_NE(said(even).find("the default stays\n"), std::string::npos);
  EXPECT_NE(said(even).find("from-to"), std::string::npos);
  const Sweep uneven = measured({{{{16 * MiB, 4}, 8e9}}, 0.02, 0}, random);
  EXPECT_NE(said(uneven).find("16.0 MiB x 4 beats the default, 4.0 MiB x 8: "), std::string::npos)
      << said(uneven);
  EXPECT_NE(said(uneven).find("--io-block 16MiB "), std::string::npos);
  EXPECT_NE(said(uneven).find("--io-in-flight 64MiB "), std::string::npos);
  const Sweep slowest_is_usual = measured({{{{4 * MiB, 8}, 9e9}}, 0.02, 0}, random);
  EXPECT_NE(said(slowest_is_usual).find("no setting beats the default, 4.0 MiB x 8\n"),
            std::string::npos);
}

TEST(SwapBenchAdvice, FewRoundsSayNothingOfTheSpreadAndMemoryIsNoDisk) {
  std::mt19937 random(3);
  const Disk disk = {{{{16 * MiB, 4}, 8e9}}, 0.02, 0};
  for (const std::uint32_t rounds : {1u, 2u, 4u}) {
    const Sweep few = measured(disk, random, rounds);
    EXPECT_EQ(advice_of(few).verdict, Verdict::too_few_rounds);
    EXPECT_TRUE(advice_of(few).use.usual());
    EXPECT_NE(said(few).find("say nothing of the spread; the default stays"), std::string::npos);
  }
  Sweep memory = measured(disk, random);
  memory.info.in_memory = true;
  EXPECT_EQ(advice_of(memory).verdict, Verdict::in_memory);
  const std::string text = said(memory);
  EXPECT_NE(text.find("is memory (tmpfs), no disk"), std::string::npos) << text;
  EXPECT_EQ(text.find("--io-block"), std::string::npos) << text;  // nothing to use
}

}  // namespace
}  // namespace ebb::tools::swap_bench
