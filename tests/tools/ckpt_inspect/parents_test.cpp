// The folder that a run writes its saves into: it names them, and the newest that is whole.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/tools/ckpt_inspect/inspect.h"

namespace ebb {
namespace {

namespace fs = std::filesystem;
using inspect_test::copy;
using inspect_test::inspect;
using inspect_test::says;
using inspect_test::write;
using test_support::Outcome;
using test_support::ScratchDirectory;

void expect_hint(const std::string& path, const std::string& hint) {
  const Outcome run = inspect({path});
  EXPECT_NE(run.exit, 0) << run.out;
  EXPECT_TRUE(says(run.err, "hint: " + hint)) << run.err;
}

TEST(InspectParents, OfOlmoAndPrimeRlNameStepsAndNotTheFoldersInThem) {
  const ScratchDirectory scratch;
  copy("folders/olmo/data", scratch / "olmo/step200");
  copy("folders/prime_rl/data", scratch / "rl/checkpoints/step_50");
  copy("folders/prime_rl/data", scratch / "rl/checkpoints/step_100");
  for (const char* step : {"50", "100"})
    copy("folders/trainer/data/model.safetensors",
         scratch / ("rl/weights/step_" + std::string(step) + "/model.safetensors"));
  expect_hint(scratch / "olmo", "the newest that is whole: " + scratch / "olmo/step200 (step 200)");
  expect_hint(scratch / "rl/checkpoints",
              "the newest that is whole: " + scratch / "rl/checkpoints/step_100 (step 100)");
  // Weights for those who serve the model lie apart, and are no second run.
  expect_hint(scratch / "rl", "the newest that is whole and has an optimizer's states: " +
                                  scratch / "rl/checkpoints/step_100 (step 100)");
}

// Composer keeps a link beside its saves, which may lead to one that is gone.
TEST(InspectParents, OfComposerNameFoldersAndFilesBesideALink) {
  const ScratchDirectory scratch;
  copy("dcp/fsdp2_w1/data", scratch / "sharded/ep0-ba9");
  copy("dcp/fsdp2_w1/data", scratch / "sharded/ep0-ba10");
  fs::create_symlink("ep0-ba10", scratch / "sharded/latest-rank0.pt");
  expect_hint(scratch / "sharded", "the newest that is whole: " + scratch / "sharded/ep0-ba10");
  for (const char* batch : {"9", "10"})
    copy("torch/muon_adamw_state/data/ckpt.pt",
         scratch / ("files/ep0-ba" + std::string(batch) + "-rank0.pt"));
  fs::create_symlink("ep0-ba10-rank0.pt", scratch / "files/latest-rank0.pt");
  expect_hint(scratch / "files",
              "the newest that is whole: " + scratch / "files/ep0-ba10-rank0.pt");
  fs::resize_file(scratch / "files/ep0-ba10-rank0.pt", 100);
  expect_hint(scratch / "files", "the newest that is whole: " + scratch / "files/ep0-ba9-rank0.pt");
  fs::remove(scratch / "files/ep0-ba10-rank0.pt");
  fs::remove(scratch / "files/ep0-ba9-rank0.pt");
  copy("torch/muon_adamw_state/data/ckpt.pt", scratch / "files/best.pt");
  EXPECT_EQ(inspect({scratch / "files"}).exit, 0) << "the link leads nowhere";
}

// Files that differ in more than a number are no saves of one run.
TEST(InspectParents, OfFilesThatAreNotAlikeNoneIsPicked) {
  const ScratchDirectory scratch;
  for (const char* name : {"best.pt", "last.pt"})
    copy("torch/muon_adamw_state/data/ckpt.pt", scratch / name);
  expect_hint(scratch.path(), "name one of the files");
}

// What LLaMA-Factory, axolotl and others leave: the model, and the saves that led to it.
TEST(InspectParents, OutputsWithAModelOnTopNameTheNewestWholeSave) {
  const ScratchDirectory scratch;
  const std::string out = scratch / "out";
  copy("folders/trainer/data/model.safetensors", out + "/model.safetensors");
  copy("folders/trainer/data", out + "/checkpoint-9");
  copy("folders/trainer/data", out + "/checkpoint-10");
  copy("folders/trainer/data", scratch / "other/checkpoint-11");
  const auto note = [&](const std::string& what) {
    const Outcome run = inspect({out});
    EXPECT_EQ(run.exit, 0) << run.err;
    EXPECT_TRUE(says(run.out, what)) << run.out;
    EXPECT_FALSE(says(run.out, "checkpoint-11")) << "a neighbour's";
  };
  note("with an optimizer's states: " + out + "/checkpoint-10");
  fs::resize_file(out + "/checkpoint-10/optimizer.pt", 100);
  note("with an optimizer's states: " + out + "/checkpoint-9");
  fs::resize_file(out + "/checkpoint-9/optimizer.pt", 100);
  note("no checkpoint below is whole");
}

TEST(InspectParents, OfNemoTheFolderOfWeightsIsTheCheckpoint) {
  const ScratchDirectory scratch;
  const std::string save = scratch / "gpt--val_loss=2.10-step=9-consumed_samples=80.0";
  copy("megatron/flattened015_tied_dp3/data/iter_0000003", save + "/weights");
  write(save + "/context/io.json", "{}");
  write(save + "/context/model.yaml", "a: 1");
  const Outcome run = inspect({save});
  EXPECT_EQ(run.exit, 0) << run.err;
  EXPECT_TRUE(says(run.out, ": megatron, ")) << run.out;
  EXPECT_TRUE(says(run.out, "context/: nothing trained")) << run.out;
  EXPECT_EQ(inspect({save, "--verify"}).exit, 0);
  fs::copy(save, save + "-last", fs::copy_options::recursive);
  expect_hint(scratch.path(), "the newest that is whole: " + save);
  write(save + "-last-unfinished");
  write(save + "-unfinished");
  expect_hint(scratch.path(), "name one of them");
}

}  // namespace
}  // namespace ebb
