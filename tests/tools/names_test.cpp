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

// The file is the checkpoint, and what was said of it does not fit.
TEST(NumbersOfAFile, ThatFitNotAreToldAsThatAndNotAsAFolders) {
  const ScratchDirectory scratch;
  const std::string names = written(scratch / "names", "x\n");
  const Outcome run = convert(
      {"torch/layout_net_opt/data/ckpt.pt", scratch / "out", "--to", "ebb", "--names", names});
  EXPECT_EQ(run.exit, 2) << run.err;
  EXPECT_TRUE(says(run.err, "--names has 1 lines, but optimizers number 3")) << run.err;
  EXPECT_FALSE(says(run.err, "which is the folder")) << run.err;
}

// torchao's CPUOffloadOptimizer: an optimizer for each matrix, and one for the rest.
TEST(OptimizersOfOneParameterEach, AreNamedByShapesAndByWhatIsSaid) {
  const std::string source = "torch/layout_offloaded/data";
  const ScratchDirectory scratch;
  const Outcome shown = run_program("ckpt-inspect", {source});
  EXPECT_TRUE(says(shown.out, "3 parameters of an optimizer are numbers")) << shown.out;
  EXPECT_TRUE(says(shown.out, "3 are alike, [4, 4] (q, k, v)")) << shown.out;
  const std::size_t note = shown.out.find("are numbers");
  EXPECT_EQ(shown.out.find("are numbers", note + 1), std::string::npos) << shown.out;
  const Outcome refused = convert({source, scratch / "no", "--to", "deepspeed"});
  EXPECT_EQ(refused.exit, 4) << refused.err;
  EXPECT_TRUE(says(refused.err, "'optimizer.offloaded.0.0' (exp_avg)")) << refused.err;
  const std::string names = written(scratch / "names.txt", "q\nk\nv\nup\ndown\nnorm\nbias\n");
  for (const char* format : {"ebb", "deepspeed", "megatron"}) {
    const std::string out = scratch / format;
    const Outcome run = convert({source, out, "--to", format, "--names", names});
    ASSERT_EQ(run.exit, 0) << format << ": " << run.err;
    for (const auto& [number, name] : std::vector<std::pair<std::string, std::string>>{
             {"offloaded.0.0", "q"}, {"offloaded.1.0", "k"}, {"offloaded.2.0", "v"}})
      EXPECT_EQ(digest_of(out, name, "exp_avg"),
                digest_of(source, "optimizer." + number, "exp_avg"))
          << format << " " << name;
    EXPECT_EQ(digest_of(out, "up", "exp_avg"), digest_of(source, "up", "exp_avg")) << format;
  }
}

// What has no effect is said to have none.
TEST(NamesThatGoNowhere, AreSaidTo) {
  const ScratchDirectory scratch;
  std::string lines;
  for (const char* layer : {"0", "1", "2", "3", "4", "5"})
    lines += std::string("l") + layer + ".weight\n";
  const std::string names = written(scratch / "names.txt", lines);
  const std::string numbers = "dcp/numbers_ddp_w2/data";
  struct Row {
    std::vector<std::string> arguments;
    std::string said;  // "": they go somewhere
  };
  const std::vector<Row> rows = {
      {{numbers, "--to", "dcp", "--names", names}, "dcp keeps the keys of the state dict"},
      {{numbers, "--to", "torch", "--names", names}, "torch keeps the keys of the state dict"},
      {{numbers, "--to", "torch", "--names", "order"}, "torch keeps the keys of the state dict"},
      {{numbers, "--weights", "--names", names}, "weights have names of their own"},
      {{"folders/trainer/data", "--to", "safetensors", "--names", "order", "--drop"},
       "no name in it is by order"},
      {{numbers, "--to", "safetensors", "--names", names}, ""},
      {{"torch/layout_int_steps/data", "--to", "ebb", "--names", "order"}, ""}};
  std::size_t count = 0;
  for (const Row& row : rows) {
    std::vector<std::string> arguments = row.arguments;
    arguments.insert(arguments.begin() + 1, scratch / std::to_string(count++));
    const Outcome run = convert(arguments);
    EXPECT_EQ(run.exit, 0) << run.err;
    EXPECT_EQ(says(run.out, "--names changes nothing here"), !row.said.empty()) << run.out;
    EXPECT_TRUE(says(run.out, row.said)) << row.said << ": " << run.out;
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
  // Renamed, they are where a loader looks for them: under the optimizer's numbers.
  const Outcome renamed =
      convert({source, scratch / "renamed", "--to", "torch", "--rename", "blk.*=layers.*"});
  ASSERT_EQ(renamed.exit, 0) << renamed.err;
  const Outcome values = run_program("ckpt-inspect", {scratch / "renamed", "--tensors", "--json"});
  EXPECT_TRUE(says(values.out, "\"optimizer.state.4.step\": 3")) << values.out;
  EXPECT_TRUE(says(values.out, "model.layers.0.norm.bias")) << values.out;
}

}  // namespace

}  // namespace ebb
