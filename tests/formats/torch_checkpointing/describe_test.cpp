// What torch_checkpointing 0.1.1 wrote, read as torch said it is, and what is said of folders that
// are not whole.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "ebb/formats/describe.h"
#include "ebb/formats/torch_checkpointing/torch_checkpointing.h"
#include "tests/formats/torch/sharded_pickles.h"
#include "tests/support/expected.h"
#include "tests/support/source_tree.h"

namespace ebb {
namespace {

namespace fs = std::filesystem;
using formats::PickleWriter;
using test_support::MemoryTree;

const fs::path kCases = fs::path(EBB_FIXTURES) / "torch_checkpointing";

// The fixture without some files.
std::shared_ptr<MemoryTree> without(std::string_view fixture, std::vector<std::string> names) {
  const auto all = test_support::load_tree(kCases / fixture / "data");
  auto some = std::make_shared<MemoryTree>("ck");
  for (const auto& entry : all->entries())
    if (std::ranges::find(names, entry.name) == names.end())
      some->add(entry.name, all->bytes_of(entry.name));
  return some;
}

Error error_of(std::shared_ptr<const formats::SourceTree> tree) {
  const auto checkpoint = formats::describe(std::move(tree));
  return checkpoint ? Error{} : checkpoint.error();
}

bool says(const std::vector<std::string>& notes, std::string_view words) {
  return std::ranges::any_of(
      notes, [&](const std::string& note) { return note.find(words) != std::string::npos; });
}

class TorchCheckpointing : public testing::TestWithParam<std::string_view> {};

TEST_P(TorchCheckpointing, HoldsWhatTorchSaidItHolds) {
  const auto checkpoint = formats::describe(test_support::load_tree(kCases / GetParam() / "data"));
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  EXPECT_EQ((*checkpoint)->catalog().format, "torch-checkpointing");
  EXPECT_EQ(test_support::differences(**checkpoint, kCases / GetParam() / "expected.json",
                                      test_support::Compare::tensors_and_values),
            "");
  EXPECT_TRUE(prove_coverage((*checkpoint)->catalog()).has_value());
  EXPECT_TRUE((*checkpoint)->catalog().unread.empty());
  EXPECT_TRUE((*checkpoint)->catalog().beside.empty());
}

INSTANTIATE_TEST_SUITE_P(Cases, TorchCheckpointing, testing::Values("placements_w4", "trained_w3"));

TEST(TorchCheckpointingFolder, MissingRanksAreNamedWithTheirFiles) {
  const Error one = error_of(without("trained_w3", {"optim_1.pt"}));
  EXPECT_EQ(one.code, Code::incomplete);
  EXPECT_EQ(one.message.substr(0, 51), "ck: the file of rank 1 is missing: optim_1.pt (opti")
      << one.message;
  EXPECT_EQ(one.place.rank, 1u);
  const Error two = error_of(without("trained_w3", {"model_2.pt", "optim_2.pt"}));
  EXPECT_NE(two.message.find("the files of rank 2 are missing: model_2.pt, optim_2.pt"),
            std::string::npos)
      << two.message;
  const Error elsewhere = error_of(without("placements_w4", {"rank_3/other.pt"}));
  EXPECT_NE(elsewhere.message.find("the file of rank 3 is missing: rank_3/other.pt"),
            std::string::npos)
      << elsewhere.message;
  const Error all = error_of(without("trained_w3", {"optim_0.pt", "optim_1.pt", "optim_2.pt"}));
  EXPECT_EQ(all.code, Code::incomplete);
  EXPECT_NE(all.message.find("in none of the files: optim[\"state\",\"down.weight\",\"exp_avg\"]"),
            std::string::npos)
      << all.message;
}

TEST(TorchCheckpointingFolder, WithoutARanksOwnItemIsReadAndSaysSo) {
  const auto checkpoint = formats::describe(without("trained_w3", {"step_1.pt"}));
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  EXPECT_TRUE(says((*checkpoint)->catalog().notes, "there is no step_1.pt"));
}

TEST(TorchCheckpointingFolder, RandomNumbersOfOtherRanksAreNotedAndOtherTensorsAreNotChosenFrom) {
  const auto tree = without("trained_w3", {});
  const auto rank = [](char content) {
    return test_support::rank_file(
        [&](PickleWriter& pickle) {
          pickle.string("w");
          test_support::plain_tensor(pickle, "0", {4});
        },
        content);
  };
  tree->add("ema_0.pt", rank('a'));
  tree->add("ema_1.pt", rank('b'));
  const auto checkpoint = formats::describe(tree);
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  const Catalog& catalog = (*checkpoint)->catalog();
  EXPECT_TRUE(says(catalog.notes, "not the same in the files of all ranks"));
  EXPECT_TRUE(says(catalog.notes, "of ema, rng, step"));
  ASSERT_EQ(catalog.unread.size(), 1u);
  EXPECT_EQ(catalog.unread[0].key, "ema.w");
}

TEST(TorchCheckpointingFolder, FilesOfAnotherSaveAreRefused) {
  const auto shapes = without("trained_w3", {"model_0.pt"});
  shapes->add("model_0.pt", test_support::rank_file([](PickleWriter& pickle) {
                pickle.string("up.weight");
                test_support::pickle_dtensor(
                    pickle, "0",
                    {.shape = {4, 3}, .local = {2, 3}, .mesh = {3}, .ranks = {0, 1, 2}});
              }));
  const Error other = error_of(shapes);
  EXPECT_EQ(other.code, Code::corrupt);
  EXPECT_EQ(other.message,
            "ck/model_0.pt: \"model.up.weight\": it is F32 [4, 3], in metadata.pkl F32 [7, 3] "
            "(files of two saves)");
  const auto worlds = without("trained_w3", {"rng_0.pt"});
  worlds->add("rng_0.pt", test_support::rank_file([](PickleWriter& pickle) {
                pickle.string("w");
                test_support::pickle_dtensor(
                    pickle, "0",
                    {.shape = {8, 3}, .local = {2, 3}, .mesh = {4}, .ranks = {0, 1, 2, 3}});
              }));
  EXPECT_NE(error_of(worlds).message.find("parts of rank 3, and metadata.pkl says that 3 ranks"),
            std::string::npos)
      << error_of(worlds).message;
}

TEST(TorchCheckpointingFolder, FilesOfRanksThatWroteNothingOfItLieBeside) {
  const auto tree = without("trained_w3", {});
  tree->add("model_3.pt", tree->bytes_of("model_2.pt"));
  const auto checkpoint = formats::describe(tree);
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  ASSERT_EQ((*checkpoint)->catalog().beside.size(), 1u);
  EXPECT_EQ((*checkpoint)->catalog().beside[0].path, "model_3.pt");
}

// No item has a resharder: no metadata.
TEST(TorchCheckpointingFolder, WithoutMetadataIsReadByItsFilesAndResumesOnAsManyRanks) {
  const auto tree = without("trained_w3", {"metadata.pkl"});
  const auto checkpoint = formats::describe(tree);
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  EXPECT_EQ(test_support::differences(**checkpoint, kCases / "trained_w3" / "expected.json",
                                      test_support::Compare::tensors_and_values),
            "");
  const auto answer = [&](std::uint32_t world) {
    return resume_answer(formats::torch_checkpointing_resume(), {(*checkpoint)->catalog(), world});
  };
  EXPECT_TRUE(answer(3).resumable);
  EXPECT_FALSE(answer(2).resumable);
  EXPECT_TRUE(answer(2).why.starts_with("model, optim was saved without a resharder"));
  const Error error = error_of(without("trained_w3", {"metadata.pkl", "optim_1.pt"}));
  EXPECT_EQ(error.code, Code::incomplete);
  EXPECT_TRUE(error.message.starts_with("ck: the file of rank 1 is missing: optim_1.pt"))
      << error.message;
}

TEST(TorchCheckpointingFolder, IsRecognisedByWhatMetadataPklSays) {
  const auto tree = without("trained_w3", {"metadata.pkl"});
  tree->add("metadata.pkl", std::string_view("\x80\x04]."));
  EXPECT_FALSE(formats::detect_torch_checkpointing(*tree));
  EXPECT_TRUE(formats::detect_torch_checkpointing(*without("trained_w3", {})));
}

TEST(TorchCheckpointingFolder, ResumesAsThePackageDoes) {
  const auto answer = [](std::shared_ptr<const formats::SourceTree> tree, std::uint32_t world) {
    const auto checkpoint = formats::describe(std::move(tree));
    EXPECT_TRUE(checkpoint.has_value());
    return resume_answer(formats::torch_checkpointing_resume(), {(*checkpoint)->catalog(), world});
  };
  const auto all = without("trained_w3", {});
  EXPECT_TRUE(answer(all, 3).resumable);
  EXPECT_TRUE(answer(all, 3).notes.empty());
  EXPECT_TRUE(answer(all, 2).resumable);
  EXPECT_TRUE(says(answer(all, 2).notes, "numbers beside them"));
  EXPECT_FALSE(answer(all, 4).resumable);
  EXPECT_TRUE(answer(all, 4).why.starts_with("of rng, step there is a file for each of"));
  const auto dealt = without(
      "trained_w3", {"rng_0.pt", "rng_1.pt", "rng_2.pt", "step_0.pt", "step_1.pt", "step_2.pt"});
  EXPECT_TRUE(answer(dealt, 4).resumable);
}

}  // namespace
}  // namespace ebb
