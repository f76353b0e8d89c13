// Twenty steps beside what the public implementations computed (tests/fixtures/muon). A run is
// called as_is (bf16 Newton-Schulz) or fp32 there; tolerances come from each case's own file.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "ebb/libmuon/kernels/kernels.h"
#include "tests/libmuon/support/muon_trace.h"

namespace ebb::libmuon {
namespace {

using testing::number_after;
using testing::relative_distance;
using testing::Trace;

constexpr std::array kStepsInTrace = {1, 2, 5, 20};

bool in_trace(int step) {
  return std::find(kStepsInTrace.begin(), kStepsInTrace.end(), step) != kStepsInTrace.end();
}

void follow_muon(const std::string& name, MuonSpec spec, std::uint64_t rows, std::uint64_t cols) {
  const Trace trace(name);
  const std::string& text = trace.description();
  const auto tolerance = [&](const std::string& run, const std::string& key) {
    return number_after(text, {"runs", run, "tolerance", key});
  };
  spec.weight_decay = number_after(text, {"runs", "as_is", "weight_decay"});
  const auto started = libswap::Pool::start(2);
  ASSERT_TRUE(started);
  libswap::Pool& pool = **started;

  auto w = trace.tensor("param.0");
  std::vector<float> m(w.size()), o(w.size());
  for (int step = 1; step <= 20; ++step) {
    momentum_range(spec, 1.0f, trace.gradient(step), m, o);
    orthogonalize(spec, Bf16::emulated, Block::matrix(rows, cols), o, pool);
    apply_range(spec, scales_of(spec, {rows, cols}, {0, 1}).front().scale, o, w);
    if (!in_trace(step)) continue;
    const std::string number = std::to_string(step);
    EXPECT_LE(relative_distance(m, trace.tensor("as_is.momentum." + number)),
              tolerance("as_is", "momentum_vs_trace"));
    EXPECT_LE(trace.update_distance("as_is", step, w),
              tolerance("as_is", "update." + number + "_vs_trace"));
    // Two runs that are each this close to fp64.
    EXPECT_LE(trace.update_distance("fp32", step, w),
              2 * tolerance("fp32", "update." + number + "_vs_fp64"));
  }
  o = trace.tensor("fp32.U.1");
  orthogonalize(spec, Bf16::emulated, Block::matrix(rows, cols), o, pool);
  EXPECT_LE(relative_distance(o, trace.tensor("fp32.O.1")),
            2 * tolerance("fp32", "O_given_U_vs_fp64"));
}

TEST(Trace, KellerOnAWideGaussianMatrix) {
  follow_muon("keller-wide-gauss", MuonSpec::keller(), 24, 40);
}

TEST(Trace, KellerWhereEpsDecides) { follow_muon("keller-eps", MuonSpec::keller(), 15, 26); }

TEST(Trace, AdamWOfTorch) {
  const Trace trace("adamw-torch");
  const auto tolerance = [&](const std::string& key) {
    return number_after(trace.description(), {"tolerance", key});
  };
  const AdamSpec spec = AdamSpec::torch();
  auto w = trace.tensor("param.0");
  std::vector<float> first(w.size()), second(w.size());
  for (int step = 1; step <= 20; ++step) {
    adamw_range(spec, static_cast<std::uint64_t>(step), 1.0f, trace.gradient(step), w, first,
                second);
    if (step != 1 && step != 5 && step != 20) continue;
    const std::string number = std::to_string(step);
    EXPECT_LE(relative_distance(first, trace.tensor("fused.exp_avg." + number)),
              2 * tolerance("exp_avg"));
    EXPECT_LE(relative_distance(second, trace.tensor("fused.exp_avg_sq." + number)),
              2 * tolerance("exp_avg_sq"));
    EXPECT_LE(trace.update_distance("fused", step, w), 2 * tolerance("update_vs_fp64"));
  }
}

}  // namespace
}  // namespace ebb::libmuon
