// muon-replay: what the frameworks computed, within their tolerances, through the engine; and what
// it says of a case that is none.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "ebb/libmuon/kernels/kernels.h"
#include "tests/replay/report.h"
#include "tests/support/program.h"

namespace ebb::replay {
namespace {

namespace fs = std::filesystem;
using test_support::run_program;
using test_support::ScratchDirectory;

fs::path fixture(const std::string& name) { return fs::path(EBB_FIXTURES) / "muon" / name; }

class Cases : public testing::TestWithParam<const char*> {};

// All that it is held to: updates, momentum, Newton-Schulz alone; however bf16 is multiplied.
TEST_P(Cases, HoldsToEveryToleranceOfItsOwn) {
  const auto one = Case::open(fixture(GetParam()));
  ASSERT_TRUE(one) << one.error().message;
  for (const libmuon::Bf16 bf16 : {libmuon::Bf16::emulated, libmuon::Bf16::real}) {
    if (bf16 == libmuon::Bf16::real && !libmuon::has_real_bf16()) continue;
    const auto report = replay(*one, bf16);
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_TRUE((*report).good()) << name_of(bf16) << ":\n" << (*report).text();
    EXPECT_GE((*report).lines.size(), 12u);
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, Cases,
                         testing::Values("adamw-torch", "deepspeed-eps-bf16",
                                         "deepspeed-expert3d-bf16", "deepspeed-gram-tall-bf16",
                                         "deepspeed-gram-wide-bf16", "deepspeed-heads-bf16",
                                         "deepspeed-square-bf16", "deepspeed-standard-tall-bf16",
                                         "dion-flatten-cautious", "emerging-head-cubic5",
                                         "gram-eps", "keller-bf16-tall", "keller-eps",
                                         "keller-wide-gauss", "megcore-wide", "moonlight-row-1xN",
                                         "moonlight-wide-6", "nanogpt-wide", "normuon-fp32-formula",
                                         "normuon-wide-bf16", "torch213-steps3-tall-bf16"));

// A case with one text of its case.json changed.
class Changed {
 public:
  Changed(const std::string& name, const std::string& from, const std::string& to) {
    std::ifstream file(fixture(name) / "case.json");
    std::string text((std::istreambuf_iterator<char>(file)), {});
    for (std::size_t at = 0; (at = text.find(from, at)) != text.npos; at += to.size())
      text.replace(at, from.size(), to);
    std::ofstream(fs::path(scratch_.path()) / "case.json") << text;
    fs::copy_file(fixture(name) / "trace.safetensors",
                  fs::path(scratch_.path()) / "trace.safetensors");
  }
  test_support::Outcome replayed() const { return run_program("muon-replay", {scratch_.path()}); }

 private:
  ScratchDirectory scratch_;
};

TEST(MuonReplay, PrintsErrorsBesideTolerancesAndSaysSoByItsExitCode) {
  const auto good = run_program("muon-replay", {fixture("keller-eps").string()});
  EXPECT_EQ(good.exit, 0) << good.err;
  EXPECT_NE(good.out.find("update.20_vs_fp64"), std::string::npos) << good.out;
  EXPECT_TRUE(good.out.ends_with("keller-eps: holds\n"));
  // Another formula than that of the trace.
  const auto bad =
      Changed("keller-eps", "\"eps_rule\": \"add\"", "\"eps_rule\": \"clamp\"").replayed();
  EXPECT_EQ(bad.exit, 1) << bad.err;
  EXPECT_NE(bad.out.find("FAILS"), std::string::npos);
}

TEST(MuonReplay, ACaseThatIsNoneIsOneSentenceAndExitCodeTwo) {
  const auto said = [](const test_support::Outcome& outcome) {
    EXPECT_EQ(outcome.exit, 2);
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    return outcome.err;
  };
  EXPECT_EQ(said(run_program("muon-replay", {})), "usage: muon-replay CASE_DIR [real|emulated]\n");
  const ScratchDirectory empty;
  EXPECT_EQ(said(run_program("muon-replay", {empty.path()})),
            "muon-replay: " + empty.path() + " has no case.json\n");
  const auto changed = [&](const std::string& from, const std::string& to) {
    return said(Changed("keller-eps", from, to).replayed());
  };
  EXPECT_EQ(changed("\"nesterov\": true", "\"nesterov\": 1"),
            "muon-replay: case.json: runs.as_is.spec.nesterov is neither true nor false\n");
  EXPECT_EQ(changed("\"momentum\": 0.95", "\"beta\": 0.95"),
            "muon-replay: case.json: runs.as_is.spec.momentum is missing\n");
  EXPECT_EQ(changed("\"momentum\": 0.95", "\"momentum\": 1.5"),
            "muon-replay: setting beta = 1.5 is outside [0, 1)\n");
  EXPECT_EQ(changed("\"weight_decay_kind\": \"decoupled\"", "\"weight_decay_kind\": \"l3\""),
            "muon-replay: case.json: runs.as_is.spec.weight_decay_kind is \"l3\"; known are "
            "decoupled, independent, palm, cautious, cautious_lr2, l2\n");
  EXPECT_EQ(changed("\"value\": 1.0", "\"value\": 1.5"),
            "muon-replay: case.json: runs.as_is.spec.scale is 1.5, its rule gives 1\n");
  EXPECT_EQ(
      changed("\"update.1_vs_fp64\"", "\"update.1_vs_fp16\""),
      "muon-replay: case.json: runs.as_is.tolerance.update.1_vs_fp16 is no tolerance that this "
      "program knows\n");
}

}  // namespace
}  // namespace ebb::replay
