// The weights of a model in one command, and selections that do not have all of them. What torch
// makes of the files: tests/judges/weights.sh.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <iterator>
#include <map>
#include <sstream>

#include "tests/tools/convert.h"

namespace ebb {
namespace {

using test_support::Outcome;
using test_support::run_program;
using test_support::ScratchDirectory;

// {name, state} -> SHA-256.
using Digests = std::map<std::pair<std::string, std::string>, std::string>;
Digests digests(const std::string& path) {
  const Outcome run = run_program("ckpt-inspect", {path, "--tensors", "--digest"});
  EXPECT_EQ(run.exit, 0) << run.err;
  Digests out;
  std::istringstream lines(run.out);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    const std::vector<std::string> cells{std::istream_iterator<std::string>(words), {}};
    if (cells.size() > 2 && cells.back().size() == 64) out[{cells[0], cells[1]}] = cells.back();
  }
  return out;
}

// Each name once, with the digest of its best copy.
std::map<std::string, std::string> best(const Digests& all) {
  std::map<std::string, std::string> out;
  for (const char* state : {"buffer", "param", "master"})
    for (const auto& [what, digest] : all)
      if (what.second == state) out[what.first] = digest;
  return out;
}

class ConvertWeights : public testing::TestWithParam<const char*> {};

TEST_P(ConvertWeights, AreEachParameterAndBufferOnceInItsMostExactCopy) {
  const ScratchDirectory scratch;
  const std::string source = GetParam(), out = scratch / "out";
  const Outcome run = convert({source, out, "--weights"});
  ASSERT_EQ(run.exit, 0) << run.err;
  EXPECT_TRUE(std::filesystem::exists(out + "/model.safetensors"));
  const auto wanted = best(digests(source));
  const Digests found = digests(out);
  for (const auto& [name, digest] : wanted)
    EXPECT_EQ(found.count({name, "param"}) ? found.at({name, "param"}) : "", digest) << name;
  // Nothing else, but for the second names of tied parameters.
  if (run.out.find("tied parameters") == std::string::npos) {
    EXPECT_EQ(found.size(), wanted.size());
  } else
    EXPECT_GT(found.size(), wanted.size());
}

INSTANTIATE_TEST_SUITE_P(
    Fixtures, ConvertWeights,
    testing::Values("deepspeed/z1_adamw_bf16_w2/data", "deepspeed/z2_muon_bf16_w2/data",
                    "deepspeed/z3_adamw_bf16_w4/data", "deepspeed/z3_muon_bf16_w4/data",
                    "deepspeed/universal_z3_adamw/data", "dcp/fsdp2_w3_bf16_fp32_master/data",
                    "dcp/fsdp2_w2_odd_rows_tied/data", "megatron/muon_layerwise_tp2_dp2/data",
                    "ebb/v1_w2/data"),
    [](const auto& one) {
      std::string name(one.param);
      std::replace_if(name.begin(), name.end(), [](char c) { return !std::isalnum(c); }, '_');
      return name;
    });

TEST(ConvertToWeights, AreOfTheFormatThatTheFilesNameSays) {
  const ScratchDirectory scratch;
  for (const char* name : {"x.pt", "pytorch_model.bin", "x.h5", "x.safetensors"}) {
    ASSERT_EQ(convert({"dcp/hsdp_2x2/data", scratch / name, "--weights"}).exit, 0) << name;
    EXPECT_TRUE(std::filesystem::is_regular_file(scratch / name)) << name;
  }
}

TEST(ConvertToWeights, OfATorchFileLeaveItsOptimizersAndGoWhereverTheyCan) {
  const ScratchDirectory scratch;
  const std::string first = scratch / "first";
  ASSERT_EQ(convert({"torch/muon_adamw_state/data", first, "--weights"}).exit, 0);
  const Digests weights = digests(first);
  EXPECT_TRUE(weights.contains({"a.weight", "param"}));
  for (const auto& [what, digest] : weights) EXPECT_EQ(what.second, "param") << what.first;
  for (const char* format : {"torch", "dcp"}) {
    const std::string out = scratch / format, back = out + "-back";
    const Outcome run = convert({"torch/muon_adamw_state/data", out, "--weights", "-t", format});
    ASSERT_EQ(run.exit, 0) << run.err;
    const Outcome again = convert({out, back, "--weights"});
    ASSERT_EQ(again.exit, 0) << again.err;
    EXPECT_EQ(digests(back), weights) << format;
  }
}

TEST(ConvertToWeights, AreRoundedAndCutIntoFilesWithAnIndex) {
  const ScratchDirectory scratch;
  const std::string out = scratch / "out";
  const Outcome run = convert({"deepspeed/z3_adamw_bf16_w4/data", out, "--weights", "--dtype",
                               "bf16", "--shard-size", "300"});
  ASSERT_EQ(run.exit, 0) << run.err;
  EXPECT_TRUE(std::filesystem::exists(out + "/model.safetensors.index.json"));
  EXPECT_NE(run.out.find("from F32 to BF16, rounded"), std::string::npos) << run.out;
  EXPECT_EQ(
      convert({"deepspeed/z3_adamw_bf16_w4/data", out, "--weights", "--states", "param"}).exit, 2);
}

// A file of torch.save whose names are what `rule` makes of a fixture's.
std::string named_by(const ScratchDirectory& scratch, const std::string& rule) {
  std::string path = scratch / "named.pt";
  const Outcome run = convert({"torch/muon_adamw_state/data", path, "--weights", "-t", "torch",
                               "--keep-names", "--rename", rule, "-f"});
  EXPECT_EQ(run.exit, 0) << run.err;
  return path;
}

TEST(ConvertToWeights, AreWithoutTheWordsOfWrappers) {
  const ScratchDirectory scratch;
  const std::string plain = scratch / "plain";
  ASSERT_EQ(convert({"torch/muon_adamw_state/data", plain, "--weights"}).exit, 0);
  for (const std::string word :
       {"_orig_mod.", "module.", "_forward_module.", "module._orig_mod."}) {
    const std::string source = named_by(scratch, "*=" + word + "*"), out = scratch / "out";
    const Outcome run = convert({source, out, "--weights", "-f"});
    ASSERT_EQ(run.exit, 0) << run.err;
    EXPECT_NE(run.out.find("takes wrappers out of"), std::string::npos) << run.out;
    EXPECT_EQ(digests(out), digests(plain)) << word;
    ASSERT_EQ(convert({source, out, "--weights", "--keep-names", "-f"}).exit, 0);
    EXPECT_TRUE(digests(out).contains({word + "a.weight", "param"})) << word;
  }
}

TEST(ConvertToWeights, LoseATrainersPrefixOnRequestAlone) {
  const ScratchDirectory scratch;
  const std::string source = named_by(scratch, "*=model.*"), out = scratch / "out";
  const Outcome kept = convert({source, out, "--weights"});
  EXPECT_EQ(kept.exit, 0) << kept.err;
  EXPECT_NE(kept.out.find("--strip model."), std::string::npos) << kept.out;
  EXPECT_TRUE(digests(out).contains({"model.a.weight", "param"}));
  ASSERT_EQ(convert({source, out, "--weights", "--strip", "model.", "-f"}).exit, 0);
  EXPECT_TRUE(digests(out).contains({"a.weight", "param"}));
  EXPECT_EQ(convert({source, out, "--weights", "--strip", "net.", "-f"}).exit, 2);
}

TEST(ConvertToAFile, MakesOneWhereTheNameEndsLikeOne) {
  const ScratchDirectory scratch;
  const std::string source = "deepspeed/z3_adamw_bf16_w4/data", plain = scratch / "plain";
  ASSERT_EQ(convert({source, plain, "--weights"}).exit, 0);
  for (const char* name : {"w.safetensors", "w.pt", "w.pth", "w.bin"}) {
    const std::string out = scratch / name;
    const std::string format = std::string(name).ends_with("safetensors") ? "safetensors" : "torch";
    const Outcome run = convert({source, out, "--weights", "-t", format});
    ASSERT_EQ(run.exit, 0) << run.err;
    EXPECT_TRUE(std::filesystem::is_regular_file(out)) << name;
    EXPECT_EQ(digests(out), digests(plain)) << name;
    EXPECT_EQ(convert({source, out, "--weights", "-t", format}).exit, 2) << "is there already";
    const Outcome again = convert({source, out, "--weights", "-t", format, "-f"});
    EXPECT_EQ(again.exit, 0) << again.err;
    EXPECT_TRUE(std::filesystem::is_regular_file(out)) << name;
  }
  const std::string folder = scratch / "many.safetensors";
  const Outcome many = convert({source, folder, "--weights", "--shard-size", "300"});
  EXPECT_EQ(many.exit, 0) << many.err;
  EXPECT_TRUE(std::filesystem::is_directory(folder));
  EXPECT_NE(many.out.find("is a directory"), std::string::npos) << many.out;
  std::size_t left = 0;
  for (const auto& entry : std::filesystem::directory_iterator(scratch.path()))
    left += entry.path().filename().string().starts_with(".") ? 1 : 0;
  EXPECT_EQ(left, 0u) << "nothing stays beside what was made";
}

// Named or not, a job has no optimizer's state of them.
TEST(ConvertOfWeightsAlone, SaysSoWhereAJobWouldLoadThem) {
  const ScratchDirectory scratch;
  const std::string weights = scratch / "weights";
  ASSERT_EQ(convert({"deepspeed/z3_adamw_bf16_w4/data", weights, "--weights"}).exit, 0);
  for (const char* format : {"dcp", "deepspeed", "deepspeed-universal", "megatron", "ebb"}) {
    const std::string out = scratch / format;
    const Outcome run = convert({weights, out, "-t", format});
    ASSERT_EQ(run.exit, 0) << format << run.err;
    EXPECT_NE(run.out.find("weights only: a job that loads it starts a new optimizer"),
              std::string::npos)
        << format << run.out;
    const Outcome asked = run_program("ckpt-inspect", {out, "--explain-resume", "1"});
    EXPECT_EQ(asked.exit, 1) << format << asked.out;
    EXPECT_NE(asked.out.find("weights only"), std::string::npos) << format << asked.out;
  }
  for (const char* format : {"safetensors", "torch"}) {
    const std::string out = scratch / format;
    ASSERT_EQ(convert({weights, out, "-t", format}).exit, 0);
    const Outcome asked = run_program("ckpt-inspect", {out, "--explain-resume", "1"});
    EXPECT_EQ(asked.exit, 1) << format << asked.out;
    EXPECT_NE(asked.out.find("weights only"), std::string::npos) << format << asked.out;
  }
}

TEST(ConvertStates, SayWhichParametersTheyLeaveOut) {
  const ScratchDirectory scratch;
  const Outcome run = convert({"deepspeed/z3_adamw_bf16_w4/data", scratch / "out", "-t",
                               "safetensors", "--states", "param"});
  ASSERT_EQ(run.exit, 0) << run.err;
  EXPECT_NE(run.out.find("leaves out the weights of 9 of 11 parameters and buffers: "
                         "blocks.0.attn.bias, blocks.0.attn.wq, "),
            std::string::npos)
      << run.out;
}

}  // namespace
}  // namespace ebb
