// DeepSpeed checkpoints that DeepSpeed itself wrote, read and compared with the training objects.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "ebb/formats/deepspeed/deepspeed.h"
#include "ebb/formats/deepspeed/names.h"
#include "ebb/formats/describe.h"
#include "ebb/formats/pickle/known_globals.h"
#include "tests/formats/deepspeed/deepspeed_fixtures.h"
#include "tests/support/archives.h"
#include "tests/support/expected.h"
#include "tests/support/source_tree.h"

namespace ebb {

namespace {

namespace fs = std::filesystem;
using formats::describe_deepspeed;
using test_support::Compare;

// Elastic files keep no hyper-parameters of the groups.
constexpr std::string_view kOtherGroups[] = {"z1_elastic_w2"};

class DeepSpeedFixture : public testing::TestWithParam<std::string> {};

TEST_P(DeepSpeedFixture, HoldsWhatTheEngineHeld) {
  const fs::path folder = kFixtures / GetParam();
  const auto tree = test_support::load_tree(folder / "data");
  ASSERT_TRUE(formats::detect_deepspeed(*tree));
  const auto checkpoint = describe_deepspeed(tree);
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  const auto covered = prove_coverage((*checkpoint)->catalog());
  EXPECT_TRUE(covered.has_value()) << covered.error().message;
  EXPECT_EQ(test_support::differences(**checkpoint, folder / "expected.json", Compare::tensors),
            "");
  std::vector<std::string_view> but_not(std::begin(kNotStored), std::end(kNotStored));
  if (std::count(std::begin(kOtherGroups), std::end(kOtherGroups), GetParam()) > 0)
    but_not.push_back("param_groups");
  EXPECT_EQ(
      test_support::value_differences((*checkpoint)->catalog(), folder / "expected.json", but_not),
      "");
}

INSTANTIATE_TEST_SUITE_P(Stage3, DeepSpeedFixture,
                         testing::Values("z3_muon_bf16_w4", "z3_muon_inmem_bf16_w2",
                                         "z3_muon_nvme_w2", "z3_adamw_bf16_w4",
                                         "z3_adam_cpuoffload_w2", "z3_muon_fp16_resume_w2",
                                         "z3_muon_groups_w2", "z3_muon_experts_w2"));
INSTANTIATE_TEST_SUITE_P(Stages1And2, DeepSpeedFixture,
                         testing::Values("old_z2_adamw_w2", "z1_adamw_bf16_w2", "z1_muon_bf16_w3",
                                         "z1_muon_bf16opt_w2", "z2_adam_fp32_w3",
                                         "z2_adamw_fp16_w2", "z2_adamw_resume_w4",
                                         "z2_muon_bf16_w2", "z1_elastic_w2", "z2_nofrozen_w2",
                                         "z2_roundrobin_w3", "z1_muon_offload_w2", "z2_aligned_w2",
                                         "z1_muon_w4", "z1_muon_groups_w2", "z2_muon_groups_w2",
                                         "z2_muon_dealt_w3", "z2_sgd_w2"));

INSTANTIATE_TEST_SUITE_P(WithoutZero, DeepSpeedFixture,
                         testing::Values("z0_adamw_bf16_w2", "z0_torch_adam_bf16_w2",
                                         "z0_adam_fp32_w2"));

std::string refusal_of(std::shared_ptr<const formats::SourceTree> tree, Code code) {
  const auto checkpoint = describe_deepspeed(std::move(tree));
  if (!checkpoint) {
    EXPECT_EQ(checkpoint.error().code, code) << checkpoint.error().message;
    return checkpoint.error().message;
  }
  return "";
}

TEST(DeepSpeedDamage, DS02MissingRankIsNamed) {
  const std::string message = refusal_of(
      test_support::load_tree(kFixtures / "bad_missing_rank" / "data"), Code::incomplete);
  EXPECT_TRUE(
      message.ends_with("global_step3: optimizer file of rank 1 is missing (partition_count is 3): "
                        "global_step3/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"))
      << message;
}

TEST(DeepSpeedDamage, P09CallsAreNamedAndStayInert) {
  const auto checkpoint =
      describe_deepspeed(test_support::load_tree(kFixtures / "bad_pickle" / "data"));
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  const auto unsafe = formats::unsafe_values((*checkpoint)->catalog());
  ASSERT_EQ(unsafe.size(), 1u);
  EXPECT_EQ(unsafe[0].key, "overflow");
  EXPECT_EQ(unsafe[0].name, "posix.system");
  EXPECT_FALSE(fs::exists("EXECUTED"));
}

// Where the call is in the way of reading, the error is about the call.
TEST(DeepSpeedDamage, P09ACallInTheWayIsRefusedByName) {
  const auto tree = test_support::load_tree(kFixtures / "z1_adamw_bf16_w2" / "data");
  const std::string name = "global_step3/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt";
  const std::string call = "cposix\nsystem\n(X\x02" + std::string(3, '\0') + "idtR.";
  tree->bytes_of(name) = test_support::archive_around(formats::view_of("\x80\x02" + call));
  const std::string message = refusal_of(tree, Code::corrupt);
  EXPECT_NE(message.find("bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"), std::string::npos)
      << message;
  EXPECT_NE(message.find("\"posix.system\""), std::string::npos) << message;
}

// Found by a fuzzer: the list of folders that is told had none to name.
TEST(DeepSpeedDamage, AFolderWithoutFilesOfRanksIsNone) {
  test_support::MemoryTree tree("ck");
  const auto files = formats::deepspeed::find_files(tree);
  ASSERT_FALSE(files.has_value());
  EXPECT_EQ(files.error().message, "ck: no DeepSpeed checkpoint is in it");
}

std::shared_ptr<test_support::MemoryTree> with_latest(std::string_view latest) {
  const auto good = test_support::load_tree(kFixtures / "z3_muon_inmem_bf16_w2" / "data");
  auto tree = std::make_shared<test_support::MemoryTree>("ck");
  for (const auto& entry : good->entries())
    if (entry.name != "latest") tree->add(entry.name, good->bytes_of(entry.name));
  if (!latest.empty()) tree->add("latest", latest);
  return tree;
}

TEST(DeepSpeedDamage, DS01LatestMayNotLeaveTheFolder) {
  EXPECT_EQ(refusal_of(with_latest("../x"), Code::corrupt),
            "ck: latest names \"../x\", which is no folder");
  EXPECT_EQ(refusal_of(with_latest("\n"), Code::corrupt),
            "ck: latest names \"\", which is no folder");
  EXPECT_EQ(refusal_of(with_latest("global_step9"), Code::incomplete),
            "ck: latest names \"global_step9\", which holds no checkpoint");
  EXPECT_EQ(refusal_of(with_latest("global_step3\r\n"), Code::corrupt), "");
  EXPECT_EQ(refusal_of(with_latest(""), Code::corrupt), "") << "one folder needs no latest";
}

TEST(DeepSpeedDamage, DS02AllMissingFilesAreNamedAtOnce) {
  const auto good = test_support::load_tree(kFixtures / "z3_muon_bf16_w4" / "data");
  const auto tree = std::make_shared<test_support::MemoryTree>("ck");
  for (const auto& entry : good->entries())
    if (entry.name.find("rank_1_mp_rank_00_optim") == std::string::npos &&
        entry.name.find("rank_3_") == std::string::npos &&
        entry.name.find("rank_0_mp_rank_00_model") == std::string::npos)
      tree->add(entry.name, good->bytes_of(entry.name));
  const auto checkpoint = describe_deepspeed(tree);
  ASSERT_FALSE(checkpoint.has_value());
  EXPECT_EQ(
      checkpoint.error().message,
      "ck: global_step3: optimizer files of ranks 1, 3, model files of ranks 0, 3 are missing "
      "(partition_count is 4): "
      "global_step3/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt, "
      "global_step3/bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt, "
      "global_step3/zero_pp_rank_0_mp_rank_00_model_states.pt, "
      "global_step3/zero_pp_rank_3_mp_rank_00_model_states.pt");
  EXPECT_EQ(checkpoint.error().place.rank, 1u);
  EXPECT_NE(checkpoint.error().hint, "");
}

std::shared_ptr<test_support::MemoryTree> two_saves_without_latest() {
  const auto good = test_support::load_tree(kFixtures / "z2_adamw_resume_w4" / "data");
  auto tree = std::make_shared<test_support::MemoryTree>("ck");
  for (const auto& entry : good->entries()) {
    if (entry.name == "latest") continue;
    tree->add(entry.name, good->bytes_of(entry.name));
    if (entry.name.starts_with("global_step5/"))  // not the last one by the alphabet
      tree->add("global_step10/" + entry.name.substr(13), good->bytes_of(entry.name));
  }
  return tree;
}

TEST(DeepSpeedDamage, DS01SeveralFoldersWithoutLatestAreAQuestion) {
  const auto checkpoint = describe_deepspeed(two_saves_without_latest());
  ASSERT_FALSE(checkpoint.has_value());
  EXPECT_EQ(checkpoint.error().code, Code::usage) << "nothing is damaged";
  EXPECT_EQ(checkpoint.error().message,
            "ck: 3 folders hold checkpoints, and no file latest says which one is meant: "
            "global_step3, global_step5, global_step10");
  EXPECT_EQ(checkpoint.error().hint, "name one of them: ck/global_step10");
}

// DeepSpeed itself asks latest, unless the job names the folder.
TEST(DeepSpeedResume, SaysThatAFolderWithoutLatestIsPassedOver) {
  const auto notes_of = [](std::shared_ptr<const formats::SourceTree> tree) {
    const auto checkpoint = describe_deepspeed(std::move(tree));
    EBB_CHECK(checkpoint.has_value());
    const auto answer =
        formats::resume_answer(formats::deepspeed_resume(), {(*checkpoint)->catalog(), 2});
    EXPECT_TRUE(answer.resumable);
    return std::ranges::count_if(answer.notes, [](const std::string& note) {
      return note.starts_with("no file latest") && note.ends_with("starts from scratch");
    });
  };
  EXPECT_EQ(notes_of(with_latest("")), 1);
  EXPECT_EQ(notes_of(with_latest("global_step3")), 0);
  const auto good = test_support::load_tree(kFixtures / "z1_adamw_bf16_w2/data/global_step3");
  EXPECT_EQ(notes_of(good), 0) << "the folder itself was named";
}

// transformers' Trainer lays files of its own beside DeepSpeed's, and asks for them.
TEST(DeepSpeedResume, SaysWhatATrainerWouldMiss) {
  const auto notes_with = [](const std::vector<std::string>& files,
                             const char* fixture = "z2_sgd_w2") {
    const auto tree = test_support::load_tree(kFixtures / fixture / "data");
    for (const std::string& file : files) tree->add(file, ByteVector());
    const auto checkpoint = formats::describe(tree);
    EBB_CHECK(checkpoint.has_value());
    auto notes =
        formats::resume_answer(formats::deepspeed_resume(), {(*checkpoint)->catalog(), 2}).notes;
    std::erase_if(notes, [](const std::string& note) {
      return note.find("is missing") == std::string::npos;
    });
    return notes;
  };
  using Notes = std::vector<std::string>;
  const std::string way =
      " is missing: transformers' Trainer does not resume without it, DeepSpeed's own loader does";
  EXPECT_EQ(notes_with({}), Notes{}) << "no Trainer's";
  EXPECT_EQ(notes_with({"trainer_state.json", "scheduler.pt"}), Notes{});
  EXPECT_EQ(notes_with({"trainer_state.json"}), Notes{"scheduler.pt" + way});
  EXPECT_EQ(notes_with({"trainer_state.json"}, "z1_adamw_bf16_w2"), Notes{})
      << "a scheduler of DeepSpeed's";
  EXPECT_EQ(notes_with({"scheduler.pt", "rng_state_0.pth"}), Notes{"trainer_state.json" + way});
  EXPECT_EQ(notes_with({"rng_state_0.pth"}), Notes{"trainer_state.json" + way});
}

TEST(DeepSpeedDamage, OneRankFileAloneIsAnsweredWithWhatToName) {
  const auto good = test_support::load_tree(kFixtures / "z1_adamw_bf16_w2" / "data");
  const auto tree = std::make_shared<test_support::MemoryTree>("ck");
  const std::string file = "global_step3/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt";
  tree->add(file, good->bytes_of(file));
  const auto checkpoint = describe_deepspeed(tree);
  ASSERT_FALSE(checkpoint.has_value());
  EXPECT_NE(checkpoint.error().hint.find("the folder with the files of all ranks"),
            std::string::npos);
}

// Stages 1 and 2 keep one model file: that of another save fits.
TEST(DeepSpeedDamage, AModelFileOfAnotherSaveIsNoticed) {
  const auto good = test_support::load_tree(kFixtures / "z2_adamw_resume_w4" / "data");
  const auto problems_of = [](const std::shared_ptr<const formats::SourceTree>& tree) {
    const auto checkpoint = describe_deepspeed(tree);
    EBB_CHECK(checkpoint.has_value());
    return formats::deepspeed_problems(tree, (*checkpoint)->catalog());
  };
  EXPECT_TRUE(problems_of(good).empty());
  good->bytes_of("global_step5/mp_rank_00_model_states.pt") =
      good->bytes_of("global_step3/mp_rank_00_model_states.pt");
  const auto checkpoint = describe_deepspeed(good);
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  const auto& notes = (*checkpoint)->catalog().notes;
  EXPECT_EQ(notes,
            (std::vector<std::string>{
                "the folder is called global_step5, its model file says step 3: files of two "
                "saves, unless the job chose the name",
                "the optimizer counts 5 steps, the model file 3: files of two saves, unless the "
                "job began to count again"}));
  const auto problems = problems_of(good);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0].place.file, "global_step5/mp_rank_00_model_states.pt");
  EXPECT_NE(problems[0].message.find("are not the master weights of the optimizer, rounded "
                                     "to BF16: files of two saves"),
            std::string::npos)
      << problems[0].message;
}

TEST(DeepSpeedDamage, AUniversalMasterOfAnotherSaveIsNoticed) {
  for (const char* fixture : {"universal_z1_adamw", "universal_z3_adamw"}) {
    const auto tree = test_support::load_tree(kFixtures / fixture / "data");
    const auto problems_of = [&] {
      const auto checkpoint = formats::describe_deepspeed_universal(tree);
      EBB_CHECK(checkpoint.has_value());
      return formats::deepspeed_problems(tree, (*checkpoint)->catalog());
    };
    EXPECT_TRUE(problems_of().empty());
    const auto master =
        std::ranges::find_if(tree->entries(), [](const formats::SourceTree::Entry& entry) {
          return entry.name.ends_with("/blocks.0.mlp.down/fp32.pt");
        });
    ASSERT_NE(master, tree->entries().end());
    std::string other = master->name;
    other.replace(other.find("mlp.down"), 8, "mlp.up");
    tree->bytes_of(master->name) = tree->bytes_of(other);
    // Stage 3 keeps no 16-bit weights that could be compared.
    EXPECT_EQ(problems_of().size(), fixture == std::string("universal_z1_adamw") ? 1u : 0u);
  }
}

// No whole checkpoint that a real DeepSpeed wrote may look mixed.
TEST(DeepSpeedVerify, FindsNothingInRealCheckpoints) {
  std::size_t seen = 0;
  for (const auto& entry : fs::directory_iterator(kFixtures)) {
    const std::string name = entry.path().filename().string();
    if (!fs::exists(entry.path() / "data/latest") || name.starts_with("bad_")) continue;
    const auto tree = test_support::load_tree(entry.path() / "data");
    const auto checkpoint = describe_deepspeed(tree);
    ASSERT_TRUE(checkpoint.has_value()) << name;
    EXPECT_TRUE(formats::deepspeed_problems(tree, (*checkpoint)->catalog()).empty()) << name;
    for (const std::string& note : (*checkpoint)->catalog().notes)
      EXPECT_EQ(note.find("two saves"), std::string::npos) << name << ": " << note;
    ++seen;
  }
  EXPECT_GE(seen, 20u);
}

TEST(DeepSpeedDamage, DS03TwoFilesForOneRankAreRefused) {
  const auto tree = with_latest("global_step3");
  const std::string name = "global_step3/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt";
  tree->add("global_step3/zero_pp_rank_1_mp_rank_00_optim_states.pt", tree->bytes_of(name));
  EXPECT_NE(refusal_of(tree, Code::layout).find("two files for one rank"), std::string::npos);
}

TEST(DeepSpeedDamage, FlippedBitInAPartitionIsNoticed) {
  const auto tree = with_latest("global_step3");
  const auto checkpoint = describe_deepspeed(tree);
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  const Catalog& catalog = (*checkpoint)->catalog();
  const Chunk& chunk = catalog.tensors.front().chunks.front();
  tree->bytes_of(catalog.files[chunk.file].name)[chunk.offset] ^= std::byte{1};
  std::string messages;
  for (const TensorEntry& tensor : catalog.tensors)
    if (const auto digest = test_support::sha256_of(**checkpoint, tensor); !digest)
      messages += digest.error().message;
  EXPECT_NE(messages.find("fails its CRC32 check"), std::string::npos) << messages;
}

TEST(DeepSpeedCatalog, ExplainsAZero3MuonCheckpoint) {
  const auto checkpoint =
      describe_deepspeed(test_support::load_tree(kFixtures / "z3_muon_bf16_w4" / "data"));
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  const Catalog& catalog = (*checkpoint)->catalog();
  EXPECT_EQ(catalog.producer, "DeepSpeed 0.19.8");
  EXPECT_EQ(catalog.step, 3);
  EXPECT_EQ(catalog.world, 4u);
  EXPECT_EQ(catalog.partition, "zero3 over 4 ranks");
  EXPECT_EQ(catalog.files.size(), 8u);
  // ceil(n / 4) * 4 - n over 39, 45, 45, 35, 66, 13, 1, 7 and 1 elements.
  EXPECT_EQ(catalog.padding_elems, 1u + 3 + 3 + 1 + 2 + 3 + 3 + 1 + 3);
  ASSERT_EQ(catalog.groups.size(), 2u);
  EXPECT_EQ(catalog.groups[0].optimizer, "muon");
  EXPECT_EQ(catalog.groups[0].params,
            (std::vector<std::string>{"blocks.0.attn.wk", "blocks.0.mlp.up", "blocks.0.mlp.down",
                                      "blocks.0.attn.wq"}));
  EXPECT_EQ(catalog.groups[1].optimizer, "adamw");
}

}  // namespace

}  // namespace ebb
