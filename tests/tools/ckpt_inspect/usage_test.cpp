// Which flags of ckpt-inspect go together, and what is said when they do not.
#include <gtest/gtest.h>

#include "tests/tools/ckpt_inspect/inspect.h"

namespace ebb {

namespace {

using inspect_test::inspect;
using test_support::Outcome;

constexpr const char* kHsdp = "dcp/hsdp_2x2/data";

TEST(InspectModes, ExcludeEachOther) {
  const std::vector<std::vector<std::string>> modes = {
      {"--tensors"},      {"--shards"}, {"--groups"},      {"--verify"},
      {"--stats"},        {"--raw"},    {"--diff", kHsdp}, {"--explain-resume", "2"},
      {"--map", "x.html"}};
  for (const auto& first : modes)
    for (const auto& second : modes) {
      if (first == second) continue;
      std::vector<std::string> words = {kHsdp};
      words.insert(words.end(), first.begin(), first.end());
      words.insert(words.end(), second.begin(), second.end());
      const Outcome run = inspect(words);
      EXPECT_EQ(run.exit, 2) << first[0] << " " << second[0];
      EXPECT_EQ(run.out, "");
      EXPECT_NE(run.err.find("cannot be shown together"), std::string::npos) << run.err;
    }
}

TEST(InspectModes, AFilterThatSaysNothingThereIsRefused) {
  EXPECT_EQ(inspect({kHsdp, "--groups", "--rank", "0"}).err,
            "ckpt-inspect: error: --rank says nothing with --groups\nhint: leave it out\n");
  EXPECT_EQ(inspect({kHsdp, "--explain-resume", "2", "-k", "x"}).exit, 2);
  EXPECT_EQ(inspect({kHsdp, "--raw", "--state", "param"}).exit, 2);
}

TEST(InspectFilters, ARankThatIsNotThereIsNamed) {
  EXPECT_EQ(inspect({kHsdp, "--shards", "--rank", "9"}).err,
            "ckpt-inspect: error: --rank 9, but 4 ranks wrote dcp/hsdp_2x2/data\n"
            "hint: the first rank is 0\n");
}

TEST(InspectFilters, AStateThatIsNotThereGetsTheOnesThatAre) {
  const Outcome run = inspect({kHsdp, "--tensors", "--state", "momentum"});
  EXPECT_EQ(run.exit, 2);
  EXPECT_EQ(run.err,
            "ckpt-inspect: error: none of the 41 tensors matches\n"
            "hint: states here: param, exp_avg, exp_avg_sq, momentum_buffer, step\n");
}

TEST(InspectFilters, KeyPicksGroupsByTheirParameters) {
  const Outcome run = inspect({kHsdp, "--groups", "-k", "emb.*"});
  EXPECT_EQ(run.exit, 0);
  EXPECT_TRUE(run.out.starts_with("  group 1  adamw, 2 parameters\n")) << run.out;
  EXPECT_EQ(run.out.find("group 0"), std::string::npos) << run.out;
}

// Every error says its place apart, whoever found it.
TEST(InspectJsonErrors, NameTheFileAndTheByte) {
  const auto error = [](const char* path) { return inspect({path, "--json"}).out; };
  EXPECT_NE(error("nosuch").find("\"file\": \"nosuch\""), std::string::npos) << error("nosuch");
  EXPECT_NE(error("dcp/bad_hole/data").find("\"file\": \"dcp/bad_hole/data/.metadata\""),
            std::string::npos)
      << error("dcp/bad_hole/data");
  const std::string cut = error("dcp/bad_metadata_truncated/data");
  EXPECT_NE(cut.find("/.metadata\", \"offset\": 2,"), std::string::npos) << cut;
}

// A reader of --verify's document gets one even where nothing could be described.
TEST(InspectVerifyJson, NamesTheProblemOfADamagedCheckpoint) {
  const Outcome run = inspect({"deepspeed/bad_missing_rank/data", "--verify", "--json"});
  EXPECT_EQ(run.exit, 3);
  EXPECT_NE(run.out.find("\"sound\": false"), std::string::npos) << run.out;
  EXPECT_NE(run.out.find("\"code\": \"incomplete\""), std::string::npos) << run.out;
}

}  // namespace

}  // namespace ebb
