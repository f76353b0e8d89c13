// What is said of figures: a goal reached, missed, or not measured and why.
#include "tests/gpu/goals.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace ebb::gpu {
namespace {

// As a device that reaches everything, just so.
Findings good() {
  Findings findings{.device = "GPU", .fingerprint = "test"};
  using Kind = Moved::Kind;
  findings.moved = {{Kind::copy, kInside, 1, 1000},
                    {Kind::copy, "copy up, pinned", 1, 10},
                    {Kind::norm, "norm", 1, 300},
                    {Kind::elementwise, "momentum", 1, 900}};
  const auto add = [&](const char* by, const Batch& batch, double seconds) {
    findings.orthogonalized.push_back({by, batch.text(), seconds, 1});
  };
  const Scale scale = Scale::full();
  for (const auto& [batch, over] : scale.goals) {
    add("ebb torch", batch, 2);
    add("ebb gram", batch, 1);
    add(kKeller, batch, over);
    add(kGram, batch, 1);
    add(kLibrary, batch, 1.94);
  }
  for (const Batch& batch : scale.of_7b.layer())
    for (const char* by : {"ebb gram", kKeller, kGram})
      if (findings.find(by, batch.text()) == nullptr) add(by, batch, 1);
  add_models(scale, findings);
  for (const char* home : {"nvme", "host", "device"})
    findings.steps.push_back({.home = home,
                              .seconds = 1,
                              .caller_cpu = 0.0015,
                              .matrices = 224,
                              .compute_s = 0.5,
                              .io_s = 0.95});
  return findings;
}

const Judged& about(const std::vector<Judged>& goals, std::string_view words) {
  const auto found = std::ranges::find_if(
      goals, [&](const Judged& one) { return one.what.find(words) != std::string::npos; });
  EXPECT_NE(found, goals.end()) << words;
  return *found;
}

TEST(GpuGoals, HoldWhereEachIsJustReached) {
  const auto goals = judge(Scale::full(), good());
  EXPECT_EQ(count_failed(goals), 0u) << text_of(goals);
  EXPECT_EQ(text_of(goals).find("not measured"), std::string::npos) << text_of(goals);
  EXPECT_EQ(about(goals, "1 x 4096 x 11008: over torch keller").goal, 1.1);
  EXPECT_EQ(about(goals, "64 x 512 x 2048: over torch keller").found, 1.2);
  EXPECT_EQ(about(goals, "7B-shaped").verdict(), Verdict::figure);
  EXPECT_EQ(about(goals, "norm: of the rate").verdict(), Verdict::figure);
}

// One after the other, and nothing else with it.
TEST(GpuGoals, FailWhereOneIsMissed) {
  const auto failed = [](const auto& spoil, std::string_view words) {
    Findings findings = good();
    spoil(findings);
    const auto goals = judge(Scale::full(), findings);
    EXPECT_EQ(count_failed(goals), 1u) << words << '\n' << text_of(goals);
    EXPECT_EQ(about(goals, words).verdict(), Verdict::failed) << words;
    EXPECT_NE(text_of(goals).find("FAILED"), std::string::npos);
  };
  const auto theirs = [](Findings& all, const char* by, const char* what) -> double& {
    return std::ranges::find_if(
               all.orthogonalized,
               [&](const Orthogonalized& one) { return one.by == by && one.what == what; })
        ->seconds;
  };
  failed([&](Findings& all) { theirs(all, kKeller, "1 x 4096 x 4096") = 0.99; },
         "1 x 4096 x 4096: over torch keller");
  failed([&](Findings& all) { theirs(all, kGram, "64 x 512 x 2048") = 0.99; },
         "64 x 512 x 2048: over gram-newton-schulz");
  failed([&](Findings& all) { theirs(all, kLibrary, "1 x 4096 x 11008") = 1.9; },
         "1 x 4096 x 11008: products as chosen");
  failed([](Findings& all) { all.moved.back().bytes = 899; }, "momentum: of the rate");
  failed([](Findings& all) { all.steps[1].caller_cpu = 0.0016; }, "state on host: ms");
  failed([](Findings& all) { all.steps[0].io_s = 0.94; }, "the disk's limit");
}

TEST(GpuGoals, AreNotMeasuredWhereSomebodyIsAbsent) {
  Findings findings = good();
  std::erase_if(findings.orthogonalized, [](const Orthogonalized& one) { return one.by == kGram; });
  findings.absent[kGram] = "No module named quack";
  findings.steps[0].io_note = "there is in memory";
  const auto goals = judge(Scale::full(), findings);
  EXPECT_EQ(count_failed(goals), 0u) << text_of(goals);
  const Judged& gram = about(goals, "over gram-newton-schulz");
  EXPECT_EQ(gram.verdict(), Verdict::not_measured);
  EXPECT_EQ(gram.why, "No module named quack");
  EXPECT_EQ(about(goals, "the disk's limit").why, "there is in memory");
}

}  // namespace
}  // namespace ebb::gpu
