// The flags of ckpt-convert that change content on its way, as a user runs them: what they say they
// do is what arrives, and the opposite flag brings back every bit.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/tools/convert.h"

namespace ebb {

namespace {

namespace fs = std::filesystem;
using test_support::Outcome;
using test_support::run_program;
using test_support::ScratchDirectory;

constexpr const char* kMuon = "deepspeed/z3_muon_bf16_w4/data";

std::string inspect(const std::vector<std::string>& arguments) {
  const Outcome run = run_program("ckpt-inspect", arguments);
  EXPECT_EQ(run.exit, 0) << run.err;
  return run.out;
}

TEST(ConvertRename, GivesOtherNamesAndTheOppositeRuleBringsThemBack) {
  const ScratchDirectory scratch;
  const std::string there = scratch / "there", back = scratch / "back";
  const Outcome run = convert({kMuon, there, "-t", "dcp", "--rename", "blocks.*=model.layers.*"});
  ASSERT_EQ(run.exit, 0) << run.err;
  EXPECT_NE(run.out.find("renames "), std::string::npos) << run.out;
  const std::string tensors = inspect({there, "--tensors"});
  EXPECT_NE(tensors.find("model.layers.0.attn.wk"), std::string::npos) << tensors;
  EXPECT_EQ(tensors.find("blocks."), std::string::npos) << tensors;
  const std::string groups = inspect({there, "--groups", "--json"});
  EXPECT_EQ(groups.find("\"blocks."), std::string::npos) << groups;
  const Outcome again =
      convert({there, back, "-t", "deepspeed", "-w", "4", "--rename", "model.layers.*=blocks.*"});
  ASSERT_EQ(again.exit, 0) << again.err;
  const Outcome diff = run_program("ckpt-inspect", {kMuon, "--diff", back});
  EXPECT_EQ(diff.exit, 0) << diff.out;
}

TEST(ConvertRename, WorksWithinAFormat) {
  const ScratchDirectory scratch;
  const std::string there = scratch / "there", back = scratch / "back";
  const std::string source = "dcp/hsdp_2x2/data";
  ASSERT_EQ(convert({source, there, "-t", "dcp", "--rename", "*=module.*"}).exit, 0);
  EXPECT_NE(inspect({there, "--tensors"}).find("module.blk.0.up.weight"), std::string::npos);
  ASSERT_EQ(convert({there, back, "-t", "dcp", "--rename", "module.*=*"}).exit, 0);
  const Outcome diff = run_program("ckpt-inspect", {source, "--diff", back});
  EXPECT_EQ(diff.exit, 0) << diff.out;
}

// Of an optimizer that numbers its parameters: torch pairs states with what groups list, and takes
// without a word what pairs with nothing.
TEST(ConvertChanges, LeaveNumbersInGroupsAndInKeysOfStates) {
  const std::string source = "torch/muon_adamw_state/data/ckpt.pt";
  const std::vector<std::vector<std::string>> edits = {{"--momentum", "sum"},
                                                       {"--rename", "*.weight=renamed.$1"}};
  for (const auto& edit : edits) {
    const ScratchDirectory scratch;
    const std::string out = scratch / "out.pt";
    ASSERT_EQ(convert({source, out, "--to", "torch", edit[0], edit[1]}).exit, 0) << edit[0];
    const std::string raw = inspect({out, "--raw"});
    for (const char* line : {"\"params\": [0, 1]", "\"params\": [0, 1, 2]", " 2: dict of 3"})
      EXPECT_NE(raw.find(line), std::string::npos) << edit[0] << line << raw;
  }
}

// How Megatron's keys are spelt is nothing of what they hold.
TEST(ConvertChanges, LeaveWhatMegatronSaysOfItsKeys) {
  const ScratchDirectory scratch;
  const std::string source = "megatron/muon_distopt_tp2_dp2/data", out = scratch / "out";
  ASSERT_EQ(convert({source, out, "--to", "megatron", "--momentum", "ema"}).exit, 0);
  const auto metadata = [](const std::string& path) {
    const std::string json = inspect({path, "--tensors", "--json"});
    const std::size_t at = json.find("\"content_metadata\": {");
    EXPECT_NE(at, std::string::npos) << json;
    return json.substr(at, json.find('}', at) - at);
  };
  EXPECT_EQ(metadata(out), metadata(source));
}

// Weights that one side alone stores are not equal bytes of two files.
TEST(ConvertChanges, DiffCountsWhatIsDerived) {
  const ScratchDirectory scratch;
  const std::string source = "megatron/muon_distopt_tp2_dp2/data", out = scratch / "out";
  ASSERT_EQ(convert({source, out, "--to", "megatron-fsdp"}).exit, 0);
  const std::string text = inspect({source, "--diff", out});
  EXPECT_NE(text.find("of those tensors 17 are stored on one side alone"), std::string::npos)
      << text;
  EXPECT_EQ(inspect({source, "--diff", source}).find("on one side alone"), std::string::npos);
}

// A DCP has words for numbers.
TEST(ConvertChanges, ByWayOfADcpNumbersAreNumbersAgain) {
  const ScratchDirectory scratch;
  const std::string dcp = scratch / "dcp", out = scratch / "out.pt";
  ASSERT_EQ(convert({"torch/layout_numbers/data/ckpt.pt", dcp, "--to", "dcp"}).exit, 0);
  ASSERT_EQ(convert({dcp, out, "--to", "torch"}).exit, 0);
  const std::string raw = inspect({out, "--raw"});
  for (const char* line : {"\"params\": [0, 1, 2, 3]", " 0: dict of 3", " 3: dict of 3"})
    EXPECT_NE(raw.find(line), std::string::npos) << line << raw;
}

TEST(ConvertRename, ARuleThatFitsNothingIsAnErrorAndWritesNothing) {
  const ScratchDirectory scratch;
  const Outcome run = convert({kMuon, scratch / "out", "-t", "dcp", "--rename", "layers.*=x.*"});
  EXPECT_EQ(run.exit, 2);
  EXPECT_NE(run.err.find("rename rule 'layers.*=x.*' fits none of the "), std::string::npos)
      << run.err;
  EXPECT_FALSE(fs::exists(scratch / "out"));
}

TEST(ConvertDType, CastsTheStatesItNamesAndSaysSo) {
  const ScratchDirectory scratch;
  const Outcome run = convert({kMuon, scratch / "out", "-t", "dcp", "--dtype", "master=bf16"});
  ASSERT_EQ(run.exit, 0) << run.err;
  EXPECT_NE(run.out.find("(master) from F32 to BF16, rounded to nearest: lossy"), std::string::npos)
      << run.out;
  const std::string weights = inspect({scratch / "out", "--tensors", "-k", "blocks.0.mlp.up"});
  EXPECT_NE(weights.find("param"), std::string::npos) << weights;
  EXPECT_EQ(weights.find("F32"), std::string::npos) << weights;
}

TEST(ConvertMomentum, BecomesASumAndAnEmaAgainAndItsGroupsSayWhich) {
  const ScratchDirectory scratch;
  const std::string sum = scratch / "sum", ema = scratch / "ema";
  const Outcome there = convert({kMuon, sum, "-t", "dcp", "--momentum", "sum"});
  ASSERT_EQ(there.exit, 0) << there.err;
  EXPECT_NE(there.out.find(" becomes sum: times "), std::string::npos) << there.out;
  const Outcome other = run_program("ckpt-inspect", {kMuon, "--diff", sum});
  EXPECT_EQ(other.exit, 1);
  EXPECT_NE(other.out.find("momentum_buffer"), std::string::npos) << other.out;
  const Outcome back = convert({sum, ema, "-t", "dcp", "--momentum", "ema"});
  ASSERT_EQ(back.exit, 0) << back.err;
  EXPECT_NE(back.out.find(" becomes ema: times "), std::string::npos) << back.out;
  EXPECT_NE(inspect({ema, "--groups"}).find("momentum_convention"), std::string::npos);
}

TEST(ConvertMomentum, IsNotSaidToBeWhatItIsNot) {
  const ScratchDirectory scratch;
  const Outcome run = convert({kMuon, scratch / "out", "-t", "dcp", "--momentum", "sum:ema"});
  EXPECT_EQ(run.exit, 4) << run.out;
  EXPECT_NE(run.err.find("it is an EMA, not sum"), std::string::npos) << run.err;
}

TEST(ConvertShardSize, CutsSafetensorsWithAnIndexAndOtherFormatsRefuse) {
  const ScratchDirectory scratch;
  const std::string out = scratch / "out";
  const Outcome run = convert({kMuon, out, "-t", "safetensors", "--shard-size", "1KiB"});
  ASSERT_EQ(run.exit, 0) << run.err;
  EXPECT_TRUE(fs::exists(out + "/model.safetensors.index.json"));
  EXPECT_TRUE(fs::exists(out + "/model-00001-of-00003.safetensors")) << run.out;
  EXPECT_EQ(inspect({out, "--tensors", "--digest"}).empty(), false);
  const Outcome refused = convert({kMuon, scratch / "no", "-t", "dcp", "--shard-size", "1KiB"});
  EXPECT_EQ(refused.exit, 2);
  EXPECT_NE(refused.err.find("--shard-size: a file of dcp holds what its rank has"),
            std::string::npos)
      << refused.err;
}

// A safetensors file's __metadata__ may hold it; in a torch file it was taken for the whole file.
TEST(ConvertKeys, AnEmptyOneIsAKeyLikeAnyOther) {
  const ScratchDirectory scratch;
  const std::string header =
      R"({"__metadata__":{"":"said","a":"b"},"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  std::string file(8, '\0');
  file[0] = static_cast<char>(header.size());
  const std::string source = scratch / "source.safetensors";
  std::ofstream(source, std::ios::binary) << file << header << 'x';
  for (const char* format : {"torch", "dcp", "megatron", "hdf5"}) {
    const std::string there = scratch / format;
    ASSERT_EQ(convert({source, there, "-t", format}).exit, 0) << format;
    const std::string values = inspect({there, "--tensors", "--json"});
    EXPECT_NE(values.find("\"\": \"said\""), std::string::npos) << format << values;
  }
}

}  // namespace

}  // namespace ebb
