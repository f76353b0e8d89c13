#include "examples/gpt/bigram.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string_view>

namespace ebb::gpt {
namespace {

std::vector<std::uint8_t> bytes(std::string_view text) { return {text.begin(), text.end()}; }

TEST(Bigram, CountsPairsOfTheTrainingText) {
  const Bigram bigram(bytes("ababac"));
  const double extra = Bigram::kSmoothing;
  EXPECT_DOUBLE_EQ(bigram.probability('a', 'b'), (2 + extra) / (3 + 256 * extra));
  EXPECT_DOUBLE_EQ(bigram.probability('b', 'a'), (2 + extra) / (2 + 256 * extra));
}

TEST(Bigram, ProbabilitiesAfterAnyByteSumToOne) {
  const Bigram bigram(bytes("to be or not to be"));
  for (const std::uint8_t previous : {'t', 'b', '\0'}) {
    double sum = 0;
    for (int next = 0; next < 256; ++next)
      sum += bigram.probability(previous, static_cast<std::uint8_t>(next));
    EXPECT_NEAR(sum, 1.0, 1e-12);
  }
}

TEST(Bigram, LossIsTheMeanSurpriseOfEveryByteButTheFirst) {
  const Bigram bigram(bytes("ababac"));
  const double expected =
      -(std::log(bigram.probability('a', 'b')) + std::log(bigram.probability('b', 'c'))) / 2;
  EXPECT_DOUBLE_EQ(bigram.loss(bytes("abc")), expected);
}

TEST(Bigram, KnowsNothingWithoutText) {
  EXPECT_NEAR(Bigram({}).loss(bytes("anything")), std::log(256.0), 1e-12);
}

}  // namespace
}  // namespace ebb::gpt
