// Folders of a Trainer and of accelerate's FSDP, as a user has them written.
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
using test_support::says;
using test_support::ScratchDirectory;

constexpr const char* kTrainer = "folders/trainer/data";
constexpr const char* kNames = "folders/trainer/names";

std::string grouped_names(const std::string& path) {
  std::ofstream(path)
      << "\nemb.weight\nb.weight\r\na.weight\nhead.weight\n\n\nb.bias\nhead.bias\n\n";
  return path;
}

bool differ(const std::string& one, const std::string& other) {
  return run_program("ckpt-inspect", {one, "--diff", other}).exit != 0;
}

TEST(TrainersFolder, IsRefusedWithoutAnOrderAndWrittenWithOne) {
  const ScratchDirectory scratch;
  const std::string plain = scratch / "plain";
  ASSERT_EQ(convert({kTrainer, plain, "--to", "safetensors", "--names", kNames}).exit, 0);
  const Outcome refused = convert({plain, scratch / "no", "--to", "transformers"});
  EXPECT_EQ(refused.exit, 4) << refused.err;
  EXPECT_TRUE(says(refused.err, "trainer.create_optimizer()")) << refused.err;
  EXPECT_TRUE(says(refused.err, "--like CHECKPOINT")) << refused.err;
  const std::string trainer = scratch / "trainer";
  ASSERT_EQ(convert({kTrainer, trainer, "--to", "transformers", "--names", kNames}).exit, 0);
  const std::vector<std::vector<std::string>> ways = {{"--names", kNames},
                                                      {"--names", grouped_names(scratch / "names")},
                                                      {"--like", trainer},
                                                      {"--like", kTrainer, "--names", kNames}};
  for (std::size_t i = 0; i < ways.size(); ++i) {
    const std::string out = scratch / std::to_string(i);
    std::vector<std::string> all = {plain, out, "--to", "transformers"};
    all.insert(all.end(), ways[i].begin(), ways[i].end());
    const Outcome run = convert(all);
    ASSERT_EQ(run.exit, 0) << i << run.err;
    EXPECT_TRUE(says(run.out, "6 parameters in 2 groups are numbered as " + ways[i][0])) << run.out;
    EXPECT_FALSE(differ(out, trainer)) << i;
  }
}

TEST(TrainersFolder, OfNumbersNeedsNeitherAndTakesNames) {
  const ScratchDirectory scratch;
  const Outcome numbers = convert({kTrainer, scratch / "numbers", "--to", "transformers"});
  ASSERT_EQ(numbers.exit, 0) << numbers.err;
  EXPECT_FALSE(differ(scratch / "numbers", kTrainer));
  const Outcome named =
      convert({kTrainer, scratch / "named", "--to", "transformers", "--names", kNames});
  ASSERT_EQ(named.exit, 0) << named.err;
  const Outcome shown = run_program("ckpt-inspect", {scratch / "named"});
  EXPECT_FALSE(says(shown.out, "are numbers")) << shown.out;
  const Outcome resumes = run_program("ckpt-inspect", {scratch / "named", "--explain-resume", "4"});
  EXPECT_EQ(resumes.exit, 0) << resumes.out;
}

TEST(TrainersFolder, IsCutWhereItsFilesWouldBeTooLarge) {
  const ScratchDirectory scratch;
  const std::string out = scratch / "cut";
  ASSERT_EQ(convert({kTrainer, out, "--to", "transformers", "--shard-size", "128"}).exit, 0);
  EXPECT_TRUE(fs::exists(out + "/model.safetensors.index.json"));
  EXPECT_FALSE(differ(out, kTrainer));
}

TEST(TrainersFolder, LikeIsOfAnOptimizerWithNamesAndForSuchFolders) {
  const ScratchDirectory scratch;
  const std::string out = scratch / "no";
  const Outcome numbers = convert({kTrainer, out, "--to", "transformers", "--like", kTrainer});
  EXPECT_EQ(numbers.exit, 2) << numbers.err;
  EXPECT_TRUE(says(numbers.err, "its optimizer has numbers for names")) << numbers.err;
  const Outcome weights = convert({kTrainer, out, "--to", "transformers", "--like",
                                   std::string(kTrainer) + "/model.safetensors"});
  EXPECT_EQ(weights.exit, 2) << weights.err;
  EXPECT_TRUE(says(weights.err, "no list of an optimizer's parameters")) << weights.err;
  const Outcome dcp = convert({kTrainer, out, "--to", "dcp", "--like", kTrainer});
  EXPECT_EQ(dcp.exit, 2) << dcp.err;
  EXPECT_TRUE(says(dcp.err, "--to transformers and accelerate-fsdp")) << dcp.err;
}

// A master is the weight that Trainer goes on with; its narrow copy is left to who rounds it.
TEST(TrainersFolder, OfDeepSpeedHasTheMastersForWeights) {
  const ScratchDirectory scratch;
  const std::string source = "deepspeed/z1_adamw_bf16_w2/data";
  const Outcome groups = run_program("ckpt-inspect", {source, "--groups"});
  std::string names;
  for (std::size_t at = groups.out.find("    - "); at != std::string::npos;
       at = groups.out.find("    - ", at + 1))
    names += groups.out.substr(at + 6, groups.out.find('\n', at) - at - 5);
  std::ofstream(scratch / "names") << names;
  const std::string out = scratch / "out";
  const Outcome run =
      convert({source, out, "--to", "transformers", "--names", scratch / "names", "--drop"});
  ASSERT_EQ(run.exit, 0) << run.err;
  EXPECT_TRUE(says(run.out, "readers round the master weights")) << run.out;
  EXPECT_TRUE(says(run.out, "scheduler.pt is not written")) << run.out;
  const Outcome shown = run_program("ckpt-inspect", {out, "--tensors", "--state", "param"});
  EXPECT_FALSE(says(shown.out, "BF16")) << shown.out;
  const Outcome resumes = run_program("ckpt-inspect", {out, "--explain-resume", "1"});
  EXPECT_EQ(resumes.exit, 1) << "without a scheduler Trainer starts anew: " << resumes.out;
}

// DeepSpeed's files in a Trainer's folder are a checkpoint of their own; Trainer asks for the rest.
TEST(TrainersFolder, UnderDeepSpeedSaysWhatOfItIsNotCopied) {
  const ScratchDirectory scratch;
  const std::string source = scratch / "checkpoint-3";
  const fs::path fixtures = EBB_FIXTURES;
  fs::copy(fixtures / "deepspeed/z1_adamw_bf16_w2/data", source, fs::copy_options::recursive);
  for (const char* file : {"scheduler.pt", "trainer_state.json"})
    fs::copy(fixtures / kTrainer / file, fs::path(source) / file);
  const Outcome run = convert({source, scratch / "out", "--to", "deepspeed", "-w", "3"});
  ASSERT_EQ(run.exit, 0) << run.err;
  EXPECT_TRUE(says(run.out, "not copied: scheduler.pt, trainer_state.json: what the job keeps"))
      << run.out;
}

// What is read alone leaves whole for what keeps every key, and its weights for any model.
TEST(TrainersFolder, OfOthersLeavesWholeForDcpAndTorch) {
  const ScratchDirectory scratch;
  for (const std::string name : {"olmo", "automodel", "prime_rl", "nanochat"}) {
    const std::string source = "folders/" + name + "/data";
    for (const std::string format : {"dcp", "torch"}) {
      const std::string out = scratch / (name + format);
      const Outcome run = convert({source, out, "--to", format});
      EXPECT_EQ(run.exit, 0) << name << format << run.err;
      // torch.save has tensors where a job keeps arrays of random numbers.
      EXPECT_TRUE(format == "torch" || !differ(out, source)) << name << format;
      EXPECT_FALSE(says(run.out, "none is recognised in it")) << run.out;
    }
    const Outcome weights = convert({source, scratch / (name + "w"), "--weights"});
    EXPECT_EQ(weights.exit, 0) << name << weights.err;
    EXPECT_TRUE(says(weights.out, ", 3 tensors, ")) << weights.out;
  }
}

TEST(FsdpFolder, OfOneHalfAloneNamesTheOther) {
  for (const std::string half : {"optimizer_0", "pytorch_model_fsdp_0"}) {
    const ScratchDirectory scratch;
    const std::string folder = scratch / "checkpoint-3";
    fs::copy(fs::path(EBB_FIXTURES) / "folders/fsdp_sharded/data", folder,
             fs::copy_options::recursive);
    fs::remove_all(folder + "/" + half);
    const Outcome run = run_program("ckpt-inspect", {folder});
    EXPECT_EQ(run.exit, 2) << run.err;
    EXPECT_TRUE(says(run.err, "of the whole save " + half + " is missing")) << run.err;
  }
}

TEST(FsdpFolder, IsWrittenForRanksAndKeepsWhatTheJobKeeps) {
  const ScratchDirectory scratch;
  const std::string out = scratch / "fsdp";
  const Outcome run =
      convert({kTrainer, out, "--to", "accelerate-fsdp", "--names", kNames, "--world-size", "2"});
  ASSERT_EQ(run.exit, 0) << run.err;
  for (const char* file : {"pytorch_model_fsdp_0/__1_0.distcp", "optimizer_0/.metadata",
                           "scheduler.pt", "trainer_state.json"})
    EXPECT_TRUE(fs::exists(out + "/" + file)) << file;
  const Outcome resumes = run_program("ckpt-inspect", {out, "--explain-resume", "2"});
  EXPECT_EQ(resumes.exit, 0) << resumes.out;
  const std::string back = scratch / "back";
  ASSERT_EQ(convert({out, back, "--to", "transformers"}).exit, 0) << "names and order are there";
  const std::string named = scratch / "named";
  ASSERT_EQ(convert({kTrainer, named, "--to", "transformers", "--names", kNames}).exit, 0);
  EXPECT_FALSE(differ(back, named));
}

}  // namespace

}  // namespace ebb
