// Files that ranks of a job saved side by side, as a user of the tools meets them.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/support/program.h"

namespace ebb {
namespace {

namespace fs = std::filesystem;
using test_support::Outcome;
using test_support::run_program;
using test_support::says;
using test_support::ScratchDirectory;

const std::string kHybrid = "torch/ranks_hybrid_w4/data";
const std::string kModelOfRank1 = kHybrid + "/pytorch_model_fsdp_0_rank1.bin";

Outcome inspect(const std::string& path, std::vector<std::string> flags = {}) {
  flags.insert(flags.begin(), path);
  return run_program("ckpt-inspect", flags);
}

Outcome convert(const std::string& path, const std::string& to, std::vector<std::string> flags) {
  flags.insert(flags.begin(), {path, to});
  return run_program("ckpt-convert", flags);
}

TEST(RankFiles, AreOneCheckpointOnScreenAndWhereItIsConverted) {
  const ScratchDirectory scratch;
  const Outcome screen = inspect(kHybrid);
  EXPECT_EQ(screen.exit, 0) << screen.err;
  EXPECT_TRUE(says(screen.out, "ranks     4, rows over 4 ranks, a file each")) << screen.out;
  EXPECT_TRUE(says(screen.out, "complete  yes: every element")) << screen.out;
  EXPECT_EQ(inspect(kHybrid, {"--verify"}).exit, 0);
  const Outcome whole = convert(kHybrid, scratch / "dcp", {"--to", "dcp"});
  EXPECT_EQ(whole.exit, 0) << whole.err;
  const Outcome same = inspect(kHybrid, {"--diff", scratch / "dcp"});
  EXPECT_EQ(same.exit, 0) << same.out << same.err;
  const Outcome weights = convert(kHybrid, scratch / "weights", {"--weights"});
  EXPECT_EQ(weights.exit, 0) << weights.err;
  EXPECT_TRUE(says(weights.out, "5 tensors")) << weights.out;
}

TEST(RankFiles, OfWhichOneIsNamedItselfAreNoModel) {
  const ScratchDirectory scratch;
  const Outcome screen = inspect(kModelOfRank1);
  EXPECT_EQ(screen.exit, 0) << screen.err;
  EXPECT_TRUE(says(screen.out, "not read  3 tensors (param 3): a DTensor: rank 1's part"));
  EXPECT_TRUE(says(screen.out, "one part of a save of 4")) << screen.out;
  const Outcome weights = convert(kModelOfRank1, scratch / "weights", {"--weights"});
  EXPECT_EQ(weights.exit, 4);
  EXPECT_TRUE(says(weights.err, "a DTensor: rank 1's part of a tensor")) << weights.err;
  EXPECT_TRUE(says(weights.err, "name the folder")) << weights.err;
  EXPECT_FALSE(fs::exists(scratch / "weights"));
}

TEST(RankFiles, ThatAreMissingAreNamed) {
  const ScratchDirectory scratch;
  fs::copy(fs::path(EBB_FIXTURES) / kHybrid, scratch / "part");
  fs::remove(scratch / "part/pytorch_model_fsdp_0_rank1.bin");
  fs::remove(scratch / "part/pytorch_model_fsdp_0_rank3.bin");
  for (const Outcome& run :
       {inspect(scratch / "part"), convert(scratch / "part", scratch / "weights", {"--weights"})}) {
    EXPECT_EQ(run.exit, 3);
    EXPECT_TRUE(says(run.err,
                     "the files of ranks 1, 3 are missing: pytorch_model_fsdp_0_rank1.bin, "
                     "pytorch_model_fsdp_0_rank3.bin"))
        << run.err;
    EXPECT_TRUE(says(run.err, "each node may have kept its own ranks' files")) << run.err;
  }
}

// All parameters of a module in one row, without their shapes.
TEST(RankFiles, OfFlattenedParametersAreNoWeights) {
  const ScratchDirectory scratch;
  const std::string local = "torch/ranks_local_w2/data";
  const Outcome weights = convert(local, scratch / "weights", {"--weights"});
  EXPECT_EQ(weights.exit, 4);
  EXPECT_TRUE(says(weights.err, "that FSDP has flattened")) << weights.err;
  EXPECT_EQ(convert(local, scratch / "dcp", {"--to", "dcp"}).exit, 0);
}

TEST(RankFiles, ResumeOnAsManyRanksAndOthersNeedAConversion) {
  EXPECT_EQ(inspect(kHybrid, {"--explain-resume", "4"}).exit, 0);
  const Outcome other = inspect(kHybrid, {"--explain-resume", "2"});
  EXPECT_EQ(other.exit, 1);
  EXPECT_TRUE(says(other.out, "--to dcp --world-size 2")) << other.out;
}

// What Megatron's ranks saved is what torch_dist holds of it.
TEST(RankFiles, OfMegatronBecomeTorchDist) {
  const std::string run = "megatron_torch/muon_pp2_dp3/data";
  const ScratchDirectory scratch;
  const Outcome written = convert(run, scratch / "dist", {"--to", "megatron", "--world-size", "3"});
  EXPECT_EQ(written.exit, 0) << written.err;
  const Outcome same = inspect(run, {"--diff", scratch / "dist"});
  EXPECT_EQ(same.exit, 0) << same.out;
  EXPECT_EQ(inspect(run, {"--verify"}).exit, 0);
  EXPECT_EQ(convert(run, scratch / "weights", {"--weights"}).exit, 0);
  const Outcome part =
      convert(run + "/iter_0000003/mp_rank_00_001", scratch / "part", {"--weights"});
  EXPECT_EQ(part.exit, 4);
  EXPECT_TRUE(says(part.err, "one part of 2 of a save")) << part.err;
}

}  // namespace
}  // namespace ebb
