// How products of bf16 are made: chosen once, kept by the store, told, and forced where one says
// so.
#include <gtest/gtest.h>

#include "ebb/libmuon/kernels/kernels.h"
#include "ebb/libmuon/spec/presets.h"
#include "tests/libmuon/support/training.h"

namespace ebb::test {
namespace {

using libmuon::Bf16;

libmuon::ModelSpec model_in(libmuon::Precision precision) {
  libmuon::MuonSpec spec = *libmuon::preset("torch");
  spec.precision = precision;
  libmuon::ModelSpec model;
  model.groups = {spec};
  model.params = {{"square", {40, 40}, 0}, {"wide", {20, 70}, 0}};
  return model;
}

// `origin` answers.
std::string opened(std::optional<Bf16> bf16, const TempDir& at, std::uint32_t ranks = 1,
                   libmuon::Precision precision = libmuon::Precision::bf16) {
  static std::uint64_t step = 0;
  const Outcome outcome =
      train({.ranks = ranks, .bf16 = bf16, .model = model_in(precision)}, at.path(), ++step);
  EXPECT_EQ(outcome.error, "");
  return outcome.origin;
}

bool says(const std::string& origin, Bf16 bf16, const std::string& how) {
  const std::string text = "products of bf16: " + std::string(name_of(bf16)) + ", " + how;
  return origin.find(text) != std::string::npos;
}

// The other one than this machine would choose, so that nothing here depends on time.
std::optional<Bf16> never_chosen() {
  if (!libmuon::has_real_bf16()) return std::nullopt;
  return libmuon::measure_bf16().bf16 == Bf16::real ? Bf16::emulated : Bf16::real;
}

TEST(Bf16Choice, IsMeasuredOnceAndKept) {
  const TempDir at;
  const std::string created = opened(std::nullopt, at);
  EXPECT_NE(created.find("times fp32, measured"), std::string::npos) << created;
  const std::string resumed = opened(std::nullopt, at);
  EXPECT_NE(resumed.find("products of bf16: "), std::string::npos) << resumed;
  EXPECT_NE(resumed.find("as before"), std::string::npos) << resumed;
  EXPECT_EQ(resumed.find("other kernels"), std::string::npos) << resumed;
}

TEST(Bf16Choice, OfAStoreIsThatOfItsResumeAndOfItsTransfer) {
  const auto forced = never_chosen();
  if (!forced) GTEST_SKIP() << "there is no choice here";
  const TempDir at;
  EXPECT_TRUE(says(opened(forced, at), *forced, "as set"));
  EXPECT_TRUE(says(opened(std::nullopt, at), *forced, "as before"));
  EXPECT_TRUE(says(opened(std::nullopt, at, 3), *forced, "as before"));
  EXPECT_TRUE(says(opened(std::nullopt, at, 2), *forced, "as before"));
  const Bf16 other = *forced == Bf16::real ? Bf16::emulated : Bf16::real;
  const std::string changed = opened(other, at, 2);
  EXPECT_TRUE(says(changed, other, "as set")) << changed;
  EXPECT_NE(changed.find("other kernels"), std::string::npos) << changed;
}

TEST(Bf16Choice, IsNoneWhereNothingIsMultipliedSo) {
  const TempDir at;
  EXPECT_EQ(opened(std::nullopt, at, 1, libmuon::Precision::fp32), "created at step 0");
  // What was not chosen is not kept either.
  const std::string origin = opened(std::nullopt, at);
  EXPECT_NE(origin.find("measured"), std::string::npos) << origin;
}

TEST(Bf16Choice, IsRankZerosForAll) {
  const TempDir at;
  const Outcome outcome =
      train({.ranks = 3, .bf16 = std::nullopt, .model = model_in(libmuon::Precision::bf16)},
            at.path(), 1);
  ASSERT_EQ(outcome.error, "");
  for (const auto& stats : outcome.stats) EXPECT_EQ(stats.bf16, outcome.stats[0].bf16);
  EXPECT_TRUE(outcome.stats[0].bf16.has_value());
}

TEST(Bf16Choice, RealOnesThatAreNotThereAreRefused) {
  const TempDir at;
  const Outcome outcome =
      train({.bf16 = Bf16::real, .model = model_in(libmuon::Precision::bf16)}, at.path(), 1);
  if (libmuon::has_real_bf16())
    EXPECT_EQ(outcome.error, "");
  else
    EXPECT_NE(outcome.error.find("no products of bf16"), std::string::npos) << outcome.error;
}

// Of either path: one result on every partition.
TEST(Bf16Choice, BitsAreThoseOfThePathAlone) {
  std::vector<std::vector<float>> results;
  for (const Bf16 bf16 : {Bf16::emulated, Bf16::real}) {
    if (bf16 == Bf16::real && !libmuon::has_real_bf16()) continue;
    const auto trained = [&](Training setup) {
      setup.bf16 = bf16;
      setup.model = model_in(libmuon::Precision::bf16);
      const TempDir at;
      const Outcome outcome = train(setup, at.path(), 3, Finish::just_stop);
      EXPECT_EQ(outcome.error, "");
      EXPECT_EQ(outcome.stats[0].bf16, bf16);
      return outcome.weights;
    };
    results.push_back(trained({.budget_bytes = 1u << 30}));
    EXPECT_EQ(trained({.ranks = 3, .budget_bytes = 4096, .threads = 3}), results.back());
    EXPECT_EQ(trained({.ranks = 2,
                       .gradients = Policy::zero3,
                       .chunk_bytes = 4096,
                       .budget_bytes = 3 * 4096}),
              results.back());
  }
}

}  // namespace
}  // namespace ebb::test
