// State dicts as people lay them out: under whatever words their parts are, they become parameters
// with states elsewhere and come back under their own words; what is not clear becomes nothing.
#include <gtest/gtest.h>

#include <filesystem>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "tests/tools/convert.h"

namespace ebb {

namespace {

namespace fs = std::filesystem;
using test_support::Outcome;
using test_support::run_program;
using test_support::ScratchDirectory;

// The texts of one field in a list of tensors or values.
std::multiset<std::string> listed(const std::string& checkpoint, const std::string& field) {
  const Outcome run = run_program("ckpt-inspect", {checkpoint, "--tensors", "--json"});
  EXPECT_EQ(run.exit, 0) << run.err;
  const std::regex pattern("\"" + field + "\": ?\"([^\"]*)\"");
  std::multiset<std::string> texts;
  for (std::sregex_iterator at(run.out.begin(), run.out.end(), pattern), end; at != end; ++at)
    texts.insert((*at)[1]);
  return texts;
}

// Without those that belong to no model or optimizer, which Megatron has no place for.
std::multiset<std::string> of_parts(std::multiset<std::string> keys) {
  std::erase_if(keys, [](const std::string& key) {
    return key == "rng" || key == "state.rng.0.torch" || key.starts_with("ema.") ||
           key.starts_with("train_state.");
  });
  return keys;
}

class Layouts : public testing::TestWithParam<const char*> {};

TEST_P(Layouts, BecomeParametersWithStatesAndComeBackUnderTheirOwnWords) {
  const std::string source = std::string("dcp/") + GetParam() + "/data";
  const ScratchDirectory scratch;
  for (const std::string through : {"megatron", "ebb", "safetensors", "torch"}) {
    const std::string there = scratch / through, back = scratch / (through + "-back");
    const Outcome run = convert({source, there, "--to", through, "-w", "2", "--drop"});
    ASSERT_EQ(run.exit, 0) << through << ": " << run.err;
    const Outcome again = convert({there, back, "--to", "dcp"});
    ASSERT_EQ(again.exit, 0) << through << ": " << again.err;
    for (const char* field : {"key", "name"})
      EXPECT_EQ(of_parts(listed(back, field)), of_parts(listed(source, field))) << through;
    if (through == "megatron") continue;
    EXPECT_EQ(listed(back, "key"), listed(source, "key")) << through;
    const Outcome diff = run_program("ckpt-inspect", {source, "--diff", there});
    EXPECT_EQ(diff.exit, 0) << through << ": " << diff.out << diff.err;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, Layouts,
                         testing::Values("layout_app", "layout_model_opt",
                                         "layout_model_adamw_muon", "layout_state", "layout_words",
                                         "layout_titan"));

TEST(LayoutOfComposer, GivesItsWeights) {
  for (const char* source : {"dcp/layout_state/data", "torch/layout_state_model/data"}) {
    const ScratchDirectory scratch;
    const Outcome run = convert({source, scratch / "out", "--weights"});
    ASSERT_EQ(run.exit, 0) << source << run.err;
    EXPECT_EQ(listed(scratch / "out", "name"),
              (std::multiset<std::string>{"emb.weight", "l.bias", "l.weight", "seen"}))
        << source;
  }
}

// torchtitan counts its run in tensors of one element, which belong to no parameter.
TEST(CountersOfARun, TravelAsValuesAndComeBackAsTensors) {
  const std::string source = "dcp/layout_titan/data";
  const ScratchDirectory scratch;
  const Outcome shown = run_program("ckpt-inspect", {source});
  EXPECT_NE(shown.out.find(", step 2\n"), std::string::npos) << shown.out;
  for (const std::string format : {"deepspeed", "deepspeed-universal", "megatron"}) {
    const std::string there = scratch / format, back = there + "-back";
    const Outcome run = convert({source, there, "--to", format, "-w", "2"});
    ASSERT_EQ(run.exit, 0) << format << run.err;
    const Outcome again = convert({there, back, "--to", "dcp"});
    ASSERT_EQ(again.exit, 0) << format << again.err;
    EXPECT_EQ(listed(back, "key").count("train_state.step"), 1u) << format;
    const Outcome same =
        run_program("ckpt-inspect", {source, "--diff", back, "-k", "train_state*"});
    EXPECT_EQ(same.exit, 0) << format << same.out << same.err;
  }
}

TEST(UnclearLayout, IsNotedAndBecomesNoParametersUntilSomebodySaysWhatItIs) {
  const std::string source = "dcp/layout_unclear/data";
  const ScratchDirectory scratch;
  const Outcome shown = run_program("ckpt-inspect", {source});
  EXPECT_NE(shown.out.find("--model KEY"), std::string::npos) << shown.out;
  for (const char* format : {"megatron", "megatron-fsdp", "ebb", "deepspeed"}) {
    const Outcome run = convert({source, scratch / "out", "--to", format});
    EXPECT_EQ(run.exit, 4) << format << ": " << run.err;
    EXPECT_NE(run.err.find("--model KEY"), std::string::npos) << run.err;
    EXPECT_FALSE(fs::exists(scratch / "out"));
  }
  const Outcome weights = convert({source, scratch / "out", "--weights"});
  EXPECT_EQ(weights.exit, 4) << weights.out;
  EXPECT_NE(weights.err.find("which part is the model is not clear"), std::string::npos);
  EXPECT_FALSE(fs::exists(scratch / "out"));
  const std::string out = scratch / "said";
  const Outcome said = convert({source, out, "--to", "ebb", "--model", "a", "-x", "b.*"});
  ASSERT_EQ(said.exit, 0) << said.err;
  EXPECT_EQ(listed(out, "name").count("emb.weight"), 3u);  // itself and two moments
  const Outcome back = convert({out, scratch / "back", "--to", "dcp"});
  ASSERT_EQ(back.exit, 0) << back.err;
  EXPECT_EQ(listed(scratch / "back", "key").count("opt.state.emb.weight.step"), 1u);
  const Outcome clear = run_program("ckpt-inspect", {source, "--model", "a"});
  EXPECT_EQ(clear.out.find("--model KEY"), std::string::npos) << clear.out;
  const Outcome wrong = run_program("ckpt-inspect", {source, "--model", "c"});
  EXPECT_EQ(wrong.exit, 2);
  EXPECT_NE(wrong.err.find("\"a\", \"b\""), std::string::npos) << wrong.err;
}

TEST(NumberedParameters, ThatNoShapeTellsApartAreNamedByTheUserOrNotAtAll) {
  const std::string source = "torch/layout_numbers/data";
  const ScratchDirectory scratch;
  const Outcome run = convert({source, scratch / "out", "--to", "megatron"});
  EXPECT_EQ(run.exit, 4) << run.err;
  EXPECT_NE(run.err.find("--names FILE"), std::string::npos) << run.err;
  const Outcome named =
      convert({source, scratch / "out", "--to", "megatron", "--rename",
               "optimizer.0=0.weight,optimizer.1=0.bias,optimizer.2=1.weight,optimizer.3=1.bias"});
  ASSERT_EQ(named.exit, 0) << named.err;
  EXPECT_GE(listed(scratch / "out", "name").count("1.bias"), 3u);
}

TEST(FolderOfSteps, ListsThemAndNamesTheNewestThatResumes) {
  const ScratchDirectory scratch;
  const fs::path fixtures = fs::path(EBB_FIXTURES) / "dcp";
  for (const char* step : {"step-2", "step-10"})
    fs::copy(fixtures / "layout_titan" / "data", scratch / step, fs::copy_options::recursive);
  fs::copy(fixtures / "layout_titan_last" / "data", scratch / "step-20",
           fs::copy_options::recursive);
  const Outcome run = run_program("ckpt-inspect", {scratch / ""});
  EXPECT_EQ(run.exit, 2);
  EXPECT_NE(run.err.find("step-2, step-10, step-20"), std::string::npos) << run.err;
  EXPECT_NE(run.err.find("optimizer's states: " + (scratch / "step-10")), std::string::npos)
      << run.err;
  EXPECT_NE(run.err.find(scratch / "step-20 is newer"), std::string::npos) << run.err;
  const Outcome last = run_program("ckpt-inspect", {scratch / "step-20"});
  EXPECT_NE(last.out.find("the model alone, without an optimizer"), std::string::npos) << last.out;
  const Outcome whole = run_program("ckpt-inspect", {scratch / "step-10"});
  EXPECT_EQ(whole.out.find("the model alone"), std::string::npos) << whole.out;
}

}  // namespace

}  // namespace ebb
