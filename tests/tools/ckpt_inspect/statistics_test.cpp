// ckpt-inspect --stats against numbers worked out by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/tools/ckpt_inspect/inspect.h"

namespace ebb {

namespace {

using inspect_test::bytes_of;
using inspect_test::inspect;
using inspect_test::write_safetensors;
using test_support::Outcome;
using test_support::ScratchDirectory;

std::string stats_of(const std::string& dtype, const std::string& shape, const std::string& bytes) {
  const ScratchDirectory scratch;
  write_safetensors(scratch / "m.safetensors", dtype, shape, bytes);
  const Outcome run = inspect({scratch.path(), "--stats", "--json"});
  EXPECT_EQ(run.exit, 0) << run.err;
  const std::size_t at = run.out.find("\"stats\": {");
  return at == std::string::npos ? run.out : run.out.substr(at + 9, run.out.find('}', at) - at - 8);
}

TEST(InspectStats, GivesSmallestLargestMeanNormAndZeros) {
  EXPECT_EQ(
      stats_of("F32", "[4]", bytes_of<float>({3, -4, 0, 12})),
      "{\"numbers\": 4, \"min\": -4, \"max\": 12, \"mean\": 2.75, \"norm\": 13, \"zeros\": 1, "
      "\"nans\": 0, \"infinities\": 0}");
}

TEST(InspectStats, CountsNanAndInfinityAndLeavesThemOut) {
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(stats_of("F64", "[2, 3]", bytes_of<double>({NAN, 1, inf, -inf, 0.5, NAN})),
            "{\"numbers\": 6, \"min\": 0.5, \"max\": 1, \"mean\": 0.75, \"norm\": "
            "1.118033988749895, \"zeros\": 0, \"nans\": 2, \"infinities\": 2}");
}

TEST(InspectStats, OfNothingFiniteSaysNothing) {
  const std::string stats = stats_of("F32", "[1]", bytes_of<float>({NAN}));
  EXPECT_NE(stats.find("\"min\": null"), std::string::npos) << stats;
  EXPECT_NE(stats_of("F32", "[0]", "").find("\"numbers\": 0"), std::string::npos);
}

TEST(InspectStats, LargeSquaresDoNotOverflow) {
  const std::string stats = stats_of("F64", "[2]", bytes_of<double>({3e300, 4e300}));
  EXPECT_NE(stats.find("\"norm\": 5e+300"), std::string::npos) << stats;
}

// 0x7e: the largest number; 0x01: the smallest subnormal. By the definitions of the types.
TEST(InspectStats, ReadsEightBitFloatsExactly) {
  const auto of = [](const std::string& dtype, const std::string& bytes) {
    const std::string stats = stats_of(dtype, "[" + std::to_string(bytes.size()) + "]", bytes);
    const std::size_t from = stats.find("\"min\"");
    return stats.substr(from, stats.find(", \"mean\"") - from) +
           stats.substr(stats.find(", \"nans\""));
  };
  EXPECT_EQ(of("F8_E4M3", "\x7e\x01\x7f"),
            "\"min\": 0.001953125, \"max\": 448, \"nans\": 1, "
            "\"infinities\": 0}");
  EXPECT_EQ(of("F8_E5M2", "\x7b\x01\x7c\x7f"),
            "\"min\": 1.52587890625e-05, \"max\": 57344, "
            "\"nans\": 1, \"infinities\": 1}");
  EXPECT_EQ(of("F8_E4M3FNUZ", "\x7f\x01\x80"),
            "\"min\": 0.0009765625, \"max\": 240, "
            "\"nans\": 1, \"infinities\": 0}");
  EXPECT_EQ(of("F8_E5M2FNUZ", "\x7f\x01\x80"),
            "\"min\": 7.62939453125e-06, \"max\": 57344, "
            "\"nans\": 1, \"infinities\": 0}");
  EXPECT_EQ(of("F8_E8M0", "\x7f\x80\xff"),
            "\"min\": 1, \"max\": 2, \"nans\": 1, "
            "\"infinities\": 0}");
}

TEST(InspectStats, TakesBothPartsOfComplexNumbers) {
  EXPECT_EQ(stats_of("C64", "[1]", bytes_of<float>({3, -4})),
            "{\"numbers\": 2, \"min\": -4, \"max\": 3, \"mean\": -0.5, \"norm\": 5, \"zeros\": 0, "
            "\"nans\": 0, \"infinities\": 0}");
}

TEST(InspectStats, AreTheSameHoweverATensorIsCut) {
  const ScratchDirectory scratch;
  const std::string source = "deepspeed/z3_muon_bf16_w4/data", out = scratch / "dcp";
  const Outcome convert = test_support::run_program(
      "ckpt-convert", {source, out, "--to", "dcp", "--world-size", "3", "--drop"});
  ASSERT_EQ(convert.exit, 0) << convert.err;
  const auto momentum = [](const std::string& path) {
    std::string text = inspect({path, "--stats", "--json", "--state", "momentum_buffer"}).out;
    for (std::size_t at = text.find("{\"key\""); at != std::string::npos;
         at = text.find("{\"key\"", at + 1))
      text.erase(at, text.find(", \"name\"", at) - at);  // keys are each format's own
    return text;
  };
  EXPECT_EQ(momentum(source), momentum(out));
}

TEST(InspectStats, OfOneRankCountsWhatItWrote) {
  const Outcome run = inspect(
      {"safetensors/dcp_hf_sharded_w3/data", "--stats", "--json", "-k", "v", "--rank", "2"});
  EXPECT_NE(run.out.find("\"numbers\": 2,"), std::string::npos) << run.out;
}

}  // namespace

}  // namespace ebb
