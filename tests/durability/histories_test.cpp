// Drawn histories (histories/history.h), each in a process of its own, and what ebb-histories is
// made of.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "tests/durability/histories/configuration.h"
#include "tests/durability/histories/run.h"
#include "tests/durability/histories/shrink.h"
#include "tests/durability/histories/wanted.h"
#include "tests/durability/machines.h"
#include "tests/support/program.h"

namespace ebb::test {
namespace {

TEST(Histories, HaveTheBitsOfRunsThatNothingHappensTo) {
  const std::uint64_t seed = seed_for("histories"), count = brief_or(20, 600);
  const TempDir directory;
  const auto ran = test_support::run_program(
      "ebb-histories",
      {std::to_string(seed), std::to_string(count), "--dir", directory.path().string()});
  std::printf("%s", ran.out.c_str());
  EXPECT_EQ(ran.exit, 0) << ran.out << ran.err;
  EXPECT_NE(ran.out.find(compose("{} histories", count)), std::string::npos) << ran.out;
}

// A disk that is lost behind a step whose weights, high halves, were written; a rank that stages
// one element of a state that is read.
TEST(Histories, ThatFailedOnceHaveTheBits) {
  for (const char* const seed : {"20261578", "30"}) {
    const TempDir directory;
    const auto ran =
        test_support::run_program("ebb-histories", {seed, "1", "--dir", directory.path().string()});
    EXPECT_EQ(ran.exit, 0) << ran.out << ran.err;
  }
}

std::string text_of(const History& history) {
  std::string text = text_of(history.meaning);
  for (const Start& start : history.starts) text += "; " + text_of(start);
  return text;
}

TEST(Histories, AreTheSameForASeedAndOthersForOthers) {
  std::set<std::string> all;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    all.insert(text_of(draw_history(seed)));
    EXPECT_EQ(text_of(draw_history(seed)), text_of(draw_history(seed)));
  }
  EXPECT_GT(all.size(), 195u);
}

TEST(Histories, OneThatFailsIsMadeAsSimpleAsItStillFails) {
  const auto fails_with = [](const History& history) {
    return std::ranges::any_of(history.starts, [](const Start& start) {
      return start.until > 0 && start.early_bytes > 0 && start.ranks > 1;
    });
  };
  std::uint64_t seed = 1;
  while (!fails_with(draw_history(seed)) || draw_history(seed).starts.size() < 3) ++seed;
  const History history = draw_history(seed);
  const auto names = shrink(history, [&](const std::vector<std::string>& without) {
    return fails_with(*simplified(history, without));
  });
  const History simplest = *simplified(history, names);
  EXPECT_EQ(std::ranges::count_if(simplest.starts, [](const Start& s) { return s.until > 0; }), 1);
  for (const Start& start : simplest.starts) {
    if (start.until == 0) continue;
    EXPECT_GT(start.early_bytes, 0u);
    EXPECT_EQ(start.failing, Failing::nothing);
    EXPECT_EQ(start.threads, 1u);
  }
  EXPECT_FALSE(simplified(history, {"9.tiles"}));
}

TEST(Histories, AVerdictComesOutOfItsTextAgain) {
  Verdict verdict{.wrong = "two\nlines", .refused = {"too small", "too large"}};
  verdict.tally.steps = 7;
  const Verdict again = verdict_from(to_text(verdict));
  EXPECT_EQ(again.wrong, verdict.wrong);
  EXPECT_EQ(again.refused, verdict.refused);
  EXPECT_EQ(again.tally.steps, 7u);
  EXPECT_EQ(verdict_from(to_text({})).wrong, "");
  EXPECT_NE(verdict_from("an error").wrong, "");
}

TEST(Histories, ABitThatDiffersInAStoreIsFound) {
  const Meaning meaning;
  const auto model = model_of(meaning, plain_start(1));
  const StoredTensors wanted = {{"up master", {1, 0}}, {"up momentum_buffer", {2}}};
  EXPECT_EQ(differing(wanted, wanted, model), "");
  auto stored = wanted;
  stored["up master"][1] = -0.0f;
  EXPECT_NE(differing(stored, wanted, model), "");
  stored = wanted;
  stored.erase("up master");
  EXPECT_NE(differing(stored, wanted, model), "");
  Meaning updates;
  updates.out = libmuon::Out::update;
  EXPECT_EQ(differing(stored, wanted, model_of(updates, plain_start(1))), "");
  stored = wanted;
  stored["up exp_avg"] = {0};
  EXPECT_NE(differing(stored, wanted, model), "");
}

}  // namespace
}  // namespace ebb::test
