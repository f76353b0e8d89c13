// --ckpt-format torch: every case that Megatron wrote, joined to what the job itself held whole,
// and what is said where files are missing, of two saves, or do not tell.
#include <gtest/gtest.h>

#include <algorithm>

#include "ebb/formats/catalog/resume.h"
#include "ebb/formats/describe.h"
#include "ebb/formats/megatron/megatron.h"
#include "ebb/formats/pickle/pickle_writer.h"
#include "tests/support/archives.h"
#include "tests/support/expected.h"
#include "tests/support/pickled_tensors.h"
#include "tests/support/source_tree.h"

namespace ebb {
namespace {

namespace fs = std::filesystem;
using test_support::MemoryTree;
using Found = Result<std::unique_ptr<Checkpoint>>;

fs::path case_at(std::string_view name) { return fs::path(EBB_FIXTURES) / "megatron_torch" / name; }

// Whose name ends so is left out.
Found read_without(std::string_view name, std::string_view left_out) {
  auto tree = std::make_shared<MemoryTree>(std::string(name));
  const auto all = test_support::load_tree(case_at(name) / "data");
  for (const auto& [file, size] : all->entries())
    if (left_out.empty() || !file.ends_with(left_out)) tree->add(file, all->bytes_of(file));
  return formats::describe(tree);
}

class MegatronRanks : public testing::TestWithParam<std::string_view> {};

TEST_P(MegatronRanks, HoldWhatTheJobHeld) {
  const auto checkpoint = read_without(GetParam(), "");
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  const Catalog& catalog = (*checkpoint)->catalog();
  EXPECT_EQ(catalog.format, "megatron-torch");
  EXPECT_EQ(catalog.step, 3);
  EXPECT_TRUE(catalog.unread.empty());
  EXPECT_TRUE(prove_coverage(catalog).has_value());
  EXPECT_EQ(test_support::differences(**checkpoint, case_at(GetParam()) / "expected.json",
                                      test_support::Compare::tensors),
            "");
  const auto tree = test_support::load_tree(case_at(GetParam()) / "data");
  EXPECT_TRUE(formats::megatron_rank_problems(tree, catalog).empty());
}

TEST_P(MegatronRanks, GiveEachParameterItsGroup) {
  const auto checkpoint = read_without(GetParam(), "");
  ASSERT_TRUE(checkpoint.has_value());
  const Catalog& catalog = (*checkpoint)->catalog();
  std::size_t members = 0, weights = 0;
  for (const auto& group : catalog.groups) members += group.params.size();
  for (const auto& tensor : catalog.tensors) weights += tensor.state == "param" ? 1 : 0;
  EXPECT_EQ(members, weights);
  EXPECT_EQ(formats::has_optimizer(catalog, "muon"), GetParam().starts_with("muon"));
}

INSTANTIATE_TEST_SUITE_P(Cases, MegatronRanks,
                         testing::Values("adam_tp2_pp2_vpp2", "adam_pp2_tied", "adam_buckets_dp2",
                                         "adam_plain_tp2_dp2", "muon_pp2_dp3", "muon_tp2_dp2"),
                         [](const auto& one) { return std::string(one.param); });

void expect_missing(std::string_view name, std::string_view file) {
  const auto checkpoint = read_without(name, file);
  ASSERT_FALSE(checkpoint.has_value()) << file;
  EXPECT_EQ(checkpoint.error().code, Code::incomplete);
  EXPECT_NE(checkpoint.error().message.find(std::string("missing: ").append(file)),
            std::string::npos)
      << checkpoint.error().message;
}

TEST(MegatronRankFiles, MissingOnesAreNamed) {
  expect_missing("adam_tp2_pp2_vpp2", "mp_rank_01_001/model_optim_rng.pt");
  expect_missing("adam_tp2_pp2_vpp2", "mp_rank_00_000/model_optim_rng.pt");
  expect_missing("adam_tp2_pp2_vpp2", "mp_rank_01_000/distrib_optim.pt");
  expect_missing("muon_pp2_dp3", "mp_rank_00_001/layer_wise_optimizer_2.pt");
  expect_missing("muon_pp2_dp3", "mp_rank_00_000/layer_wise_optimizer_0.pt");
}

TEST(MegatronRankFiles, StatesOfWhichNoFileIsThereAreNamed) {
  const auto checkpoint = read_without("adam_tp2_pp2_vpp2", "distrib_optim.pt");
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  const Catalog& catalog = (*checkpoint)->catalog();
  ASSERT_EQ(catalog.unread.size(), catalog.tensors.size());
  EXPECT_EQ(catalog.unread.front().state, "master");
  EXPECT_NE(catalog.unread.front().what.find("distrib_optim.pt"), std::string::npos);
  EXPECT_TRUE(formats::starts_anew(catalog));
}

// A rank's file by hand: storages are filled with one character each.
struct HandMade {
  std::string key;
  Shape shape;
  char fill = 'a';
};

ByteVector rank_file(std::int64_t ranks, const std::vector<HandMade>& tensors,
                     std::int64_t iteration = 7) {
  formats::PickleWriter pickle;
  std::vector<test_support::ArchiveRecord> records;
  pickle.dict([&] {
    pickle.string("args");
    pickle.object("argparse", "Namespace",
                  [&] { pickle.entry("tensor_model_parallel_size", ranks); });
    pickle.entry("iteration", iteration);
    pickle.dict("model", [&] {
      for (const HandMade& tensor : tensors) {
        const std::string storage = std::to_string(records.size());
        pickle.string(tensor.key);
        test_support::plain_tensor(pickle, storage, tensor.shape);
        records.push_back({"archive/data/" + storage,
                           std::string(formats::volume(tensor.shape) * 4, tensor.fill)});
      }
    });
  });
  const ByteVector bytes = pickle.finish();
  records.push_back({"archive/data.pkl", std::string(formats::text_of(bytes))});
  records.push_back({"archive/version", "3\n"});
  return test_support::archive_of(records);
}

Found describe_ranks(const std::vector<ByteVector>& files) {
  auto tree = std::make_shared<MemoryTree>("run");
  tree->add("latest_checkpointed_iteration.txt", "7");
  for (std::size_t i = 0; i < files.size(); ++i)
    tree->add("iter_0000007/mp_rank_0" + std::to_string(i) + "/model_optim_rng.pt", files[i]);
  return formats::describe(tree);
}

TEST(MegatronRankFiles, AnOlderModelsNamesAreKept) {
  const std::string layer = "language_model.encoder.layers.0.";
  const auto of = [&](char fill) {
    return rank_file(2, {{layer + "self_attention.query_key_value.weight", {6, 4}, fill},
                         {layer + "self_attention.dense.weight", {4, 2}, fill},
                         {layer + "mlp.dense_h_to_4h.weight", {8, 4}, fill},
                         {layer + "mlp.dense_4h_to_h.weight", {4, 4}, fill},
                         {layer + "input_layernorm.weight", {4}, 'n'}});
  };
  const auto checkpoint = describe_ranks({of('a'), of('b')});
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  const auto& tensors = (*checkpoint)->catalog().tensors;
  ASSERT_EQ(tensors.size(), 5u);
  EXPECT_EQ(tensors[0].name, layer + "self_attention.query_key_value.weight");
  EXPECT_EQ(tensors[0].shape, (Shape{12, 4}));
  EXPECT_EQ(tensors[1].shape, (Shape{4, 4}));
  // Gated: twice the rows that the second has columns.
  EXPECT_EQ(tensors[2].shape, (Shape{16, 4}));
  EXPECT_EQ(tensors[2].chunks.size(), 4u);
  EXPECT_EQ(tensors[2].chunks[1].box, (Box{{8, 0}, {4, 4}}));
  EXPECT_EQ(tensors[3].shape, (Shape{4, 8}));
  EXPECT_EQ(tensors[4].shape, (Shape{4}));
}

TEST(MegatronRankFiles, ATensorWhoseNameDoesNotTellIsNotGuessed) {
  const auto of = [](char fill) {
    return rank_file(2, {{"adapter.weight", {2, 2}, fill}, {"other.weight", {2, 2}, 'o'}});
  };
  const auto checkpoint = describe_ranks({of('a'), of('b')});
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  const Catalog& catalog = (*checkpoint)->catalog();
  ASSERT_EQ(catalog.unread.size(), 1u);
  EXPECT_EQ(catalog.unread.front().key, "adapter.weight");
  ASSERT_EQ(catalog.tensors.size(), 1u);  // which both have alike
  EXPECT_EQ(catalog.tensors.front().shape, (Shape{2, 2}));
}

void expect_two_saves(const Found& checkpoint) {
  ASSERT_FALSE(checkpoint.has_value());
  EXPECT_EQ(checkpoint.error().code, Code::corrupt);
  EXPECT_NE(checkpoint.error().message.find("files of two saves"), std::string::npos)
      << checkpoint.error().message;
}

TEST(MegatronRankFiles, FilesOfTwoSavesAreRefused) {
  const std::vector<HandMade> norm = {{"decoder.final_layernorm.weight", {4}}};
  const std::vector<HandMade> other = {{"decoder.final_layernorm.weight", {4}, 'z'}};
  EXPECT_TRUE(describe_ranks({rank_file(2, norm), rank_file(2, norm)}).has_value());
  expect_two_saves(describe_ranks({rank_file(2, norm), rank_file(2, other)}));
  expect_two_saves(describe_ranks({rank_file(2, norm), rank_file(2, norm, 8)}));
  expect_two_saves(describe_ranks({rank_file(2, norm), rank_file(2, {{"x.weight", {4}}})}));
  expect_two_saves(describe_ranks({rank_file(1, norm), rank_file(1, norm)}));
}

TEST(MegatronRankFiles, ExpertsAreRefusedByName) {
  const auto checkpoint =
      describe_ranks({rank_file(1, {{"decoder.layers.0.mlp.experts.linear_fc1.weight0", {4, 4}}})});
  ASSERT_FALSE(checkpoint.has_value());
  EXPECT_EQ(checkpoint.error().code, Code::unsupported);
  EXPECT_NE(checkpoint.error().message.find("experts"), std::string::npos);
}

// The masters do not prove the order of the buffer: nothing is placed by it.
TEST(MegatronRankFiles, StatesOfAnotherModelAreNotPlaced) {
  auto tree = std::make_shared<MemoryTree>("mixed");
  const auto all = test_support::load_tree(case_at("adam_tp2_pp2_vpp2") / "data");
  const std::string here = "iter_0000003/mp_rank_00_000/distrib_optim.pt";
  const std::string there = "iter_0000003/mp_rank_01_000/distrib_optim.pt";
  for (const auto& [file, size] : all->entries())
    tree->add(file, all->bytes_of(file == here ? there : file == there ? here : file));
  const auto checkpoint = formats::describe(tree);
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  const Catalog& catalog = (*checkpoint)->catalog();
  EXPECT_FALSE(catalog.unread.empty());
  for (const auto& tensor : catalog.tensors)
    EXPECT_TRUE(tensor.state == "param" || tensor.name != "embedding.word_embeddings.weight");
}

}  // namespace
}  // namespace ebb
