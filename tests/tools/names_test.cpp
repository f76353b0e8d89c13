// What an optimizer only numbers, in the tools: it is said what names follow from, and what a job
// would resume from takes none that somebody would have to have guessed.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "tests/tools/convert.h"

namespace ebb {

namespace {

namespace fs = std::filesystem;
using test_support::Outcome;
using test_support::run_program;
using test_support::says;
using test_support::ScratchDirectory;

std::string written(const std::string& path, const std::string& lines) {
  std::ofstream(path) << lines;
  return path;
}

// The digest of one tensor, by name and state.
std::string digest_of(const std::string& checkpoint, const std::string& name,
                      const std::string& state) {
  const Outcome run = run_program("ckpt-inspect", {checkpoint, "--tensors", "--digest", "--json",
                                                   "-k", name, "--state", state});
  EXPECT_EQ(run.exit, 0) << run.err;
  const std::size_t at = run.out.find("\"sha256\":");
  EXPECT_NE(at, std::string::npos) << run.out;
  return run.out.substr(at, 80);
}

// Two ranks of DDP: the index lists l0, l2, l4, l1, ...; the optimizer counts as the model does.
TEST(NumbersOfAnIndex, StayNumbersUntilTheirNamesAreSaid) {
  const std::string source = "dcp/numbers_ddp_w2/data";
  const ScratchDirectory scratch;
  const Outcome shown = run_program("ckpt-inspect", {source});
  EXPECT_TRUE(says(shown.out, "6 parameters of an optimizer are numbers")) << shown.out;
  EXPECT_TRUE(says(shown.out, "6 are alike, [8, 8]")) << shown.out;
  EXPECT_TRUE(says(shown.out, "6 parameters, 12 tensors")) << shown.out;
  for (const char* format : {"ebb", "deepspeed", "deepspeed-universal", "megatron"})
    for (const std::vector<std::string>& more :
         {std::vector<std::string>{}, {"--names", "order"}}) {
      std::vector<std::string> all = {source, scratch / "no", "--to", format};
      all.insert(all.end(), more.begin(), more.end());
      const Outcome run = convert(all);
      EXPECT_EQ(run.exit, 4) << format << run.err;
      EXPECT_TRUE(says(run.err, "--names FILE")) << run.err;
      EXPECT_TRUE(says(run.err, "model.named_parameters()")) << run.err;
    }
  for (const char* format : {"dcp", "torch"})
    EXPECT_EQ(convert({source, scratch / format, "--to", format}).exit, 0) << format;
  const std::string names = written(
      scratch / "names.txt", "l0.weight\nl1.weight\nl2.weight\nl3.weight\nl4.weight\nl5.weight\n");
  const std::string plain = scratch / "plain";
  ASSERT_EQ(convert({source, plain, "--to", "safetensors"}).exit, 0);
  for (const std::string& from : {source, plain})
    for (const char* format : {"ebb", "deepspeed-universal", "megatron"}) {
      const std::string out = scratch / (from == source ? "a" : "b") + format;
      const Outcome run = convert({from, out, "--to", format, "--names", names});
      ASSERT_EQ(run.exit, 0) << from << " " << format << ": " << run.err;
      EXPECT_FALSE(says(run.out, "follow from")) << run.out;
      for (const char* layer : {"1", "4"})
        EXPECT_EQ(digest_of(out, std::string("l") + layer + ".weight", "momentum_buffer"),
                  digest_of(source, std::string("optimizer.") + layer, "momentum_buffer"));
    }
  const std::string few = written(scratch / "few.txt", "l0.weight\n");
  const Outcome wrong = convert({source, scratch / "no", "--to", "ebb", "--names", few});
  EXPECT_EQ(wrong.exit, 2) << wrong.err;
  EXPECT_TRUE(says(wrong.err, "1 lines, but optimizers number 6 parameters")) << wrong.err;
}

TEST(NumbersOfATorchSaveFile, AreTakenInOrderWhereThatIsSaid) {
  const std::string source = "torch/layout_int_steps/data";
  const ScratchDirectory scratch;
  const std::string line = "names of 18 states are by order, not recorded";
  EXPECT_TRUE(says(run_program("ckpt-inspect", {source}).out, line));
  const Outcome json = run_program("ckpt-inspect", {source, "--json"});
  EXPECT_TRUE(says(json.out, line)) << json.out;
  const Outcome plain = convert({source, scratch / "plain", "--to", "safetensors"});
  ASSERT_EQ(plain.exit, 0) << plain.err;
  EXPECT_TRUE(says(plain.out, line)) << plain.out;
  for (const char* format : {"ebb", "deepspeed", "deepspeed-universal", "megatron"}) {
    const Outcome refused = convert({source, scratch / "no", "--to", format});
    EXPECT_EQ(refused.exit, 4) << format << refused.err;
    EXPECT_TRUE(says(refused.err, "--names order")) << refused.err;
    const Outcome run = convert({source, scratch / format, "--to", format, "--names", "order"});
    ASSERT_EQ(run.exit, 0) << format << run.err;
    EXPECT_TRUE(says(run.out, line)) << run.out;
  }
  // Numbers stay numbers, and weights are no states.
  EXPECT_EQ(convert({source, scratch / "dcp", "--to", "dcp"}).exit, 0);
  const Outcome weights = convert({source, scratch / "weights", "--weights"});
  EXPECT_EQ(weights.exit, 0) << weights.err;
  EXPECT_FALSE(says(weights.out, "by order")) << weights.out;
}

// What no job resumes from takes them, and says so ever after.
TEST(NamesByOrder, AreMarkedWhereverTheyAreWritten) {
  const std::string source = "torch/layout_int_steps/data";
  const std::string line = "names of 18 states are by order, not recorded";
  const ScratchDirectory scratch;
  for (const bool torch_between : {false, true}) {
    std::string plain = scratch / "plain.safetensors";
    if (torch_between) {
      ASSERT_EQ(convert({plain, scratch / "again", "--to", "torch"}).exit, 0);
      plain = scratch / "again";
    } else {
      ASSERT_EQ(convert({source, plain, "--to", "safetensors"}).exit, 0);
    }
    const Outcome shown = run_program("ckpt-inspect", {plain});
    EXPECT_TRUE(says(shown.out, line)) << shown.out;
    const Outcome refused = convert({plain, scratch / "no", "--to", "ebb"});
    EXPECT_EQ(refused.exit, 4) << refused.err;
    EXPECT_TRUE(says(refused.err, "--names order")) << refused.err;
    EXPECT_EQ(convert({plain, scratch / "weights", "--weights", "-f"}).exit, 0);
    const std::string job = scratch / "job";
    const Outcome taken = convert({plain, job, "--to", "ebb", "--names", "order", "-f"});
    EXPECT_EQ(taken.exit, 0) << taken.err;
    const Outcome of_job = run_program("ckpt-inspect", {job});
    EXPECT_FALSE(says(of_job.out, "by order")) << of_job.out;
  }
}

// Python's int counts steps like a tensor does, wherever it goes.
TEST(StepCounters, ThatArePythonsIntsArriveAndComeBack) {
  const std::string source = "torch/layout_int_steps/data";
  const ScratchDirectory scratch;
  for (const char* format :
       {"ebb", "deepspeed", "deepspeed-universal", "megatron", "safetensors"}) {
    const std::string there = scratch / format, back = there + "-back";
    const Outcome run = convert({source, there, "--to", format, "--names", "order"});
    ASSERT_EQ(run.exit, 0) << format << run.err;
    const Outcome again = convert({there, back, "--to", "dcp", "--names", "order"});
    ASSERT_EQ(again.exit, 0) << format << again.err;
    const Outcome values = run_program("ckpt-inspect", {back, "--tensors", "--json"});
    EXPECT_TRUE(says(values.out, "\"optimizer.state.blk.0.norm.bias.step\": 3"))
        << format << values.out;
    EXPECT_FALSE(says(values.out, "\"state\": \"step\"")) << format << values.out;
  }
  // Renamed, they are where a loader looks for them.
  const Outcome renamed =
      convert({source, scratch / "renamed", "--to", "torch", "--rename", "blk.*=layers.*"});
  ASSERT_EQ(renamed.exit, 0) << renamed.err;
  const Outcome values = run_program("ckpt-inspect", {scratch / "renamed", "--tensors", "--json"});
  EXPECT_TRUE(says(values.out, "optimizer.state.layers.0.norm.bias.step")) << values.out;
}

}  // namespace

}  // namespace ebb
