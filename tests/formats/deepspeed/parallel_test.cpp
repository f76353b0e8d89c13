// Checkpoints of runs with pipeline, tensor and expert parallelism that DeepSpeed itself wrote,
// read whole and compared with the training objects; and the same ones damaged.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "ebb/formats/deepspeed/deepspeed.h"
#include "tests/formats/deepspeed/deepspeed_fixtures.h"
#include "tests/formats/deepspeed/emitted.h"
#include "tests/support/archives.h"
#include "tests/support/expected.h"
#include "tests/support/source_tree.h"

namespace ebb {

namespace {

using test_support::described;
using test_support::MemoryTree;
using test_support::without;

std::shared_ptr<MemoryTree> fixture(const std::string& name) {
  return test_support::load_tree(kFixtures / name / "data");
}

class ParallelFixture : public testing::TestWithParam<std::string> {};

TEST_P(ParallelFixture, HoldsWhatTheEnginesHeld) {
  const auto folder = kFixtures / GetParam();
  const auto tree = fixture(GetParam());
  ASSERT_TRUE(formats::detect_deepspeed(*tree));
  const auto checkpoint = described(tree);
  const auto covered = prove_coverage(checkpoint->catalog());
  EXPECT_TRUE(covered.has_value()) << covered.error().message;
  EXPECT_EQ(test_support::differences(*checkpoint, folder / "expected.json",
                                      test_support::Compare::tensors),
            "");
  EXPECT_EQ(
      test_support::value_differences(checkpoint->catalog(), folder / "expected.json", kNotStored),
      "");
  const auto problems = formats::deepspeed_problems(tree, checkpoint->catalog());
  EXPECT_TRUE(problems.empty()) << problems.front().message;
}

// The groups name every trained parameter once.
TEST_P(ParallelFixture, HasItsParametersInGroups) {
  const auto checkpoint = described(fixture(GetParam()));
  std::vector<std::string> in_groups;
  for (const GroupEntry& group : checkpoint->catalog().groups)
    in_groups.insert(in_groups.end(), group.params.begin(), group.params.end());
  std::vector<std::string> trained;
  for (const TensorEntry& tensor : checkpoint->catalog().tensors)
    if (tensor.state == "master") trained.push_back(tensor.name);
  std::ranges::sort(in_groups);
  std::ranges::sort(trained);
  EXPECT_EQ(in_groups, trained);
  for (const std::string& name : trained)
    EXPECT_TRUE(checkpoint->catalog().param_steps.contains(name) ||
                GetParam().find("muon") != std::string::npos)
        << name;
}

TEST_P(ParallelFixture, BecomesUniversalAndIsTheSame) {
  const auto checkpoint = described(fixture(GetParam()));
  const auto emitted = test_support::emit(*checkpoint, Policy::replicated, 1);
  // What is made of a run without ZeRO is for one with it.
  const bool other = checkpoint->catalog().partition.find("(stage 0)") != std::string::npos;
  EXPECT_EQ(test_support::content_differences(*checkpoint, *emitted.checkpoint),
            other ? "value ds_config differs\n" : "");
}

INSTANTIATE_TEST_SUITE_P(Pipelines, ParallelFixture,
                         testing::Values("pp_z1_bf16_w4", "pp_z1_bf16opt_w4", "pp_z1_fp32_w3",
                                         "pp_z1_muon_w4"));
INSTANTIATE_TEST_SUITE_P(TensorParallel, ParallelFixture,
                         testing::Values("pptp_z1_bf16_w8", "autotp_z1_bf16_w4",
                                         "autotp_z2_fp32_w2", "autotp_z3_bf16_w4"));
INSTANTIATE_TEST_SUITE_P(WithoutZero, ParallelFixture,
                         testing::Values("autotp_z0_bf16_w2", "moe_z0_bf16_w2"));
INSTANTIATE_TEST_SUITE_P(Experts, ParallelFixture,
                         testing::Values("moe_z1_bf16_w2", "moe_z2_bf16_w4"));

// What the ranks have is no copy; the truth is what DeepSpeed's own converter makes of it.
TEST(AveragedParameters, AreTheMeanOfWhatTheRanksHave) {
  const auto checkpoint = described(fixture("autotp_average_w4"));
  EXPECT_EQ(test_support::differences(*checkpoint, kFixtures / "autotp_average_w4/expected.json",
                                      test_support::Compare::tensors),
            "");
  const Catalog& catalog = checkpoint->catalog();
  EXPECT_TRUE(std::ranges::any_of(catalog.notes, [](const std::string& note) {
    return note.find("5 parameters, \"model.embed_tokens.weight\" among them, are the mean") !=
           std::string::npos;
  }));
  const auto tensor = std::ranges::find_if(catalog.tensors, [](const TensorEntry& one) {
    return one.name == "model.embed_tokens.weight" && one.state == "exp_avg";
  });
  ASSERT_NE(tensor, catalog.tensors.end());
  const Chunk& chunk = tensor->chunks.front();
  ByteVector whole(chunk.length), pieces(chunk.length);
  ASSERT_TRUE(checkpoint->read(*tensor, chunk, 0, whole).has_value());
  for (std::size_t at = 0; at < pieces.size(); at += 7) {
    const auto piece = std::span(pieces).subspan(at, std::min<std::size_t>(7, pieces.size() - at));
    ASSERT_TRUE(checkpoint->read(*tensor, chunk, at, piece).has_value());
  }
  EXPECT_EQ(pieces, whole);
}

// Every file of a rank, a layer or an expert is missed by its name.
TEST(ParallelDamage, DS02AMissingFileIsNamed) {
  const std::pair<std::string, std::string> cases[] = {
      {"pp_z1_bf16_w4", "mp_rank_01_model_states.pt"},
      {"pp_z1_bf16_w4", "bf16_zero_pp_rank_1_mp_rank_01_optim_states.pt"},
      {"pp_z1_bf16_w4", "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"},
      {"pp_z1_bf16_w4", "layer_03-model_states.pt"},
      {"pptp_z1_bf16_w8", "layer_02-model_01-model_states.pt"},
      {"pptp_z1_bf16_w8", "mp_rank_03_model_states.pt"},
      {"pp_z1_bf16_w4", "mp_rank_00_optim_states.pt"},  // of all data-parallel ranks
      {"autotp_z1_bf16_w4", "mp_rank_00_model_states.pt"},
      {"autotp_z1_bf16_w4", "mp_rank_01_model_states.pt"},
      {"moe_z2_bf16_w4", "layer_1_expert_3_mp_rank_00_model_states.pt"},
      {"moe_z2_bf16_w4", "bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt"},
      {"moe_z0_bf16_w2", "expp_rank_0_mp_rank_00_optim_states.pt"},
      {"moe_z0_bf16_w2", "expp_rank_1_mp_rank_00_optim_states.pt"},
      {"autotp_z0_bf16_w2", "mp_rank_01_model_states.pt"}};
  for (const auto& [name, file] : cases) {
    const auto checkpoint = formats::describe_deepspeed(without(*fixture(name), file));
    ASSERT_FALSE(checkpoint.has_value()) << file;
    EXPECT_EQ(checkpoint.error().code, Code::incomplete) << checkpoint.error().message;
    EXPECT_NE(checkpoint.error().message.find(file), std::string::npos)
        << checkpoint.error().message;
    EXPECT_NE(checkpoint.error().hint, "") << file;
  }
}

// All files of the last stage: only the first ones' numbers tell that there was one.
TEST(ParallelDamage, DS02AMissingStageIsNamed) {
  const auto checkpoint =
      formats::describe_deepspeed(without(*fixture("pp_z1_bf16_w4"), "mp_rank_01"));
  ASSERT_FALSE(checkpoint.has_value());
  EXPECT_EQ(checkpoint.error().code, Code::incomplete);
  EXPECT_NE(checkpoint.error().message.find(
                "files of mp_rank_01 are missing (2 ranks of tensor or pipeline parallelism"),
            std::string::npos)
      << checkpoint.error().message;
}

// The masters of the tied embedding lie in the files of both stages; those of the second are read
// by nobody, but for their checksum.
TEST(ParallelDamage, DS13DamageOfACopyIsNoticed) {
  const auto tree = fixture("pp_z1_bf16_w4");
  const auto checkpoint = described(tree);
  const auto& tensors = checkpoint->catalog().tensors;
  const auto tied = std::ranges::find_if(tensors, [](const TensorEntry& tensor) {
    return tensor.name == "tied_modules.emb.tok" && tensor.state == "master";
  });
  ASSERT_NE(tied, tensors.end());
  ByteVector elements(tied->chunks.front().length);
  ASSERT_TRUE(checkpoint->read(*tied, tied->chunks.front(), 0, elements).has_value());
  const std::string other = "global_step3/bf16_zero_pp_rank_0_mp_rank_01_optim_states.pt";
  const auto found = std::ranges::search(tree->bytes_of(other), elements);
  ASSERT_FALSE(found.empty());
  *found.begin() ^= std::byte{0x40};
  const auto damaged = described(tree);
  std::string said;
  for (const TensorEntry& tensor : damaged->catalog().tensors)
    for (const Chunk& chunk : tensor.chunks) {
      ByteVector into(chunk.length);
      const auto read = damaged->read(tensor, chunk, 0, into);
      if (!read) said += read.error().message + "\n";
    }
  EXPECT_NE(said.find(other), std::string::npos) << said;
}

class ParallelDamageOf : public testing::TestWithParam<std::string> {};

// Whatever is changed, there is an answer.
TEST_P(ParallelDamageOf, AnyChangedByteIsAnswered) {
  const auto tree = fixture(GetParam());
  std::uint32_t random = 1;
  for (const auto& entry : tree->entries()) {
    const ByteVector good = tree->bytes_of(entry.name);
    for (int i = 0; i < 60; ++i) {
      random = random * 1664525 + 1013904223;
      ByteVector& bytes = tree->bytes_of(entry.name);
      bytes[(random >> 8) % bytes.size()] ^= std::byte(1U << (random >> 29));
      const auto checkpoint = formats::describe(tree);
      if (checkpoint)
        (void)prove_coverage((*checkpoint)->catalog());
      else
        EXPECT_NE(checkpoint.error().message, "");
      tree->bytes_of(entry.name) = good;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ParallelDamageOf,
                         testing::Values("pp_z1_bf16_w4", "pptp_z1_bf16_w8", "autotp_z2_fp32_w2",
                                         "moe_z1_bf16_w2", "moe_z0_bf16_w2"));

}  // namespace

}  // namespace ebb
