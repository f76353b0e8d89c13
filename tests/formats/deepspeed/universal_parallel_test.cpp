// Universal checkpoints of runs with tensor, pipeline or expert parallelism: each rank's model file
// lists parameters of its own, and what they are is in all of them together.
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "ebb/formats/deepspeed/deepspeed.h"
#include "ebb/formats/describe.h"
#include "tests/formats/deepspeed/deepspeed_fixtures.h"
#include "tests/formats/deepspeed/made_content.h"
#include "tests/support/archives.h"
#include "tests/support/emit_in_memory.h"
#include "tests/support/expected.h"
#include "tests/support/pickled_tensors.h"

namespace ebb {

namespace {

namespace fs = std::filesystem;
using test_support::described;
using test_support::MadeContent;
using test_support::MemoryTree;
using test_support::without;

const std::string kFolder = "global_step7_universal/";

std::shared_ptr<MemoryTree> written(const Checkpoint& content) {
  const Layout layout = test_support::layout_for(content.catalog(), Policy::replicated, 1);
  const auto plan = formats::emit_deepspeed_universal({content.catalog(), layout});
  EBB_CHECK(plan.has_value());
  auto tree = test_support::carry_out(*plan, content, "out");
  EBB_CHECK(tree.has_value());
  return std::move(*tree);
}

std::string model_file(std::size_t rank) {
  return kFolder + "mp_rank_0" + std::to_string(rank) + "_model_states.pt";
}

// Of `content`, the parameters whose names are among `names`.
MadeContent part_of(const MadeContent& content, const std::set<std::string>& names) {
  MadeContent part = content;
  Catalog& catalog = part.edit();
  std::erase_if(catalog.tensors, [&](const auto& tensor) { return !names.contains(tensor.name); });
  for (GroupEntry& group : catalog.groups)
    std::erase_if(group.params, [&](const auto& name) { return !names.contains(name); });
  std::erase_if(catalog.groups, [](const auto& group) { return group.params.empty(); });
  return part;
}

// What DeepSpeed's converter makes of a run whose model-parallel rank r has the parameters
// `parts[r]`: everybody's states, and everybody's model files.
std::shared_ptr<MemoryTree> universal_of(const std::vector<MadeContent>& parts) {
  auto tree = std::make_shared<MemoryTree>("ck");
  for (std::size_t r = 0; r < parts.size(); ++r) {
    const auto part = written(parts[r]);
    for (const auto& entry : part->entries()) {
      const bool state = entry.name.starts_with(kFolder + "zero/");
      if (entry.name == model_file(0))
        tree->add(model_file(r), part->bytes_of(entry.name));
      else if (r == 0 ? true : state && tree->find(entry.name) == nullptr)
        tree->add(entry.name, part->bytes_of(entry.name));
    }
  }
  return tree;
}

MadeContent four_layers() {
  MadeContent content("made", DType::f32);
  content.add_group("adamw", {{"0.w", {8, 8}}, {"1.w", {6, 8}}, {"2.w", {5}}, {"3.w", {4, 6}}},
                    0.01);
  content.add_group("adamw", {{"0.b", {8}}, {"1.b", {6}}, {"2.b", {1}}, {"3.b", {4}}}, 0.02);
  return content;
}

std::vector<MadeContent> stages_of(const MadeContent& content, std::size_t stages) {
  std::vector<std::set<std::string>> names(stages);
  for (std::size_t layer = 0; layer < 4; ++layer)
    for (const char* kind : {".w", ".b"})
      names[layer * stages / 4].insert(std::to_string(layer) + kind);
  std::vector<MadeContent> parts;
  for (const auto& its : names) parts.push_back(part_of(content, its));
  return parts;
}

class UniversalStages : public testing::TestWithParam<std::size_t> {};

TEST_P(UniversalStages, HaveTheirParametersTogether) {
  const MadeContent content = four_layers();
  const auto checkpoint = described(universal_of(stages_of(content, GetParam())));
  EXPECT_EQ(test_support::content_differences(content, *checkpoint), "");
  EXPECT_TRUE(prove_coverage(checkpoint->catalog()).has_value());
  for (const std::string& note : checkpoint->catalog().notes)
    EXPECT_EQ(note.find("repeat"), std::string::npos) << note;
}

INSTANTIATE_TEST_SUITE_P(OfPipelines, UniversalStages, testing::Values(1, 2, 4));

TEST(UniversalParallel, AParameterTiedAcrossStagesIsOne) {
  MadeContent content = four_layers();
  content.add_group("adamw", {{"tied_modules.emb.w", {9, 8}}}, 0.03);
  std::vector<MadeContent> parts = {
      part_of(content, {"0.w", "0.b", "1.w", "1.b", "tied_modules.emb.w"}),
      part_of(content, {"2.w", "2.b", "3.w", "3.b", "tied_modules.emb.w"})};
  EXPECT_EQ(test_support::content_differences(content, *described(universal_of(parts))), "");
}

// Each rank lists the shape of its part; what the converter merged is larger.
TEST(UniversalParallel, ATensorMergedOfPartsHasItsOwnShape) {
  MadeContent content("made", DType::f32);
  content.add_group("adamw", {{"col", {8, 6}}, {"row", {6, 8}}, {"norm", {6}}}, 0.01);
  MadeContent part("made", DType::f32);
  part.add_group("adamw", {{"col", {4, 6}}, {"row", {6, 4}}, {"norm", {6}}}, 0.01);
  const auto tree = written(content);
  const auto of_part = written(part);
  for (std::size_t rank = 0; rank < 2; ++rank)
    if (rank == 0)
      tree->bytes_of(model_file(0)) = of_part->bytes_of(model_file(0));
    else
      tree->add(model_file(1), of_part->bytes_of(model_file(0)));
  EXPECT_EQ(test_support::content_differences(content, *described(tree)), "");
}

TEST(UniversalParallel, BuffersAndFrozenParametersOfPartsAreNamedAsUnread) {
  MadeContent content("made", DType::f32);
  content.add_group("adamw", {{"col", {8, 6}}}, 0.01);
  content.add_frozen("frozen", {3, 3});
  content.add_buffer("count", DType::i64, {});
  const auto tree = written(content);
  tree->add(model_file(1), tree->bytes_of(model_file(0)));
  const auto checkpoint = described(tree);
  std::set<std::string> unread;
  for (const formats::UnreadEntry& entry : checkpoint->catalog().unread)
    unread.insert(entry.name + " " + entry.state);
  EXPECT_EQ(unread, (std::set<std::string>{"frozen param", "count buffer"}));
}

TEST(UniversalParallel, AMissingModelFileIsNamed) {
  const auto tree = universal_of(stages_of(four_layers(), 4));
  const auto checkpoint = formats::describe(without(*tree, model_file(2)));
  ASSERT_FALSE(checkpoint.has_value());
  EXPECT_EQ(checkpoint.error().code, Code::incomplete);
  EXPECT_NE(checkpoint.error().message.find("model file of mp_rank_02 is missing"),
            std::string::npos)
      << checkpoint.error().message;
}

// DeepSpeed's own file says of how many ranks it is one.
TEST(UniversalParallel, TheLastModelFileIsMissedToo) {
  const auto tree =
      test_support::load_tree(fs::path(EBB_FIXTURES) / "deepspeed/universal_pipeline/data");
  const auto checkpoint =
      formats::describe(without(*tree, "global_step2_universal/mp_rank_01_model_states.pt"));
  ASSERT_FALSE(checkpoint.has_value());
  EXPECT_EQ(checkpoint.error().code, Code::incomplete);
  EXPECT_NE(checkpoint.error().message.find("model file of mp_rank_01 is missing"),
            std::string::npos)
      << checkpoint.error().message;
}

// A folder with optimizer state in it repeats nothing.
TEST(UniversalParallel, AParameterThatNoModelFileListsIsReadAllTheSame) {
  const MadeContent content = four_layers();
  const auto tree = universal_of(stages_of(content, 2));
  const auto checkpoint = described(without(*tree, model_file(1)));
  std::set<std::string> names;
  for (const TensorEntry& tensor : checkpoint->catalog().tensors) names.insert(tensor.name);
  EXPECT_EQ(names.size(), 8u);
  EXPECT_TRUE(std::ranges::any_of(checkpoint->catalog().notes, [](const std::string& note) {
    return note.find("4 parameters, \"2.b\" among them") != std::string::npos;
  }));
}

TEST(UniversalParallel, StagesWithOtherNumbersOfGroupsAreSaid) {
  const MadeContent content = four_layers();
  const auto checkpoint = described(
      universal_of({part_of(content, {"0.w", "0.b", "1.w", "1.b"}),
                    part_of(content, {"2.w", "3.w"}), part_of(content, {"2.b", "3.b", "2.w"})}));
  EXPECT_TRUE(std::ranges::any_of(checkpoint->catalog().notes, [](const std::string& note) {
    return note.find("mp_rank_01_model_states.pt has 1 parameter groups") != std::string::npos;
  }));
}

// Experts are listed with the shape of one rank's, in the one model file that there is.
TEST(UniversalParallel, ExpertsHaveTheShapeOfAll) {
  MadeContent content("made", DType::f32);
  content.add_group("adamw", {{"mlp.experts.w1", {2, 3}}}, 0.01);
  const auto tree = written(content);
  formats::PickleWriter pickle;
  pickle.dict([&] {
    pickle.string("param");
    test_support::plain_tensor(pickle, "0", {4, 3});
    pickle.entry("cat_dim", 0);
    pickle.string("is_expert_param");
    pickle.boolean(1);
    pickle.entry("ep_num_experts", 4);
  });
  const ByteVector experts = test_support::archive_around(pickle.finish(), {48});
  for (const char* state : {"fp32", "exp_avg", "exp_avg_sq"})
    tree->bytes_of(kFolder + "zero/mlp.experts.w1/" + state + ".pt") = experts;
  const auto checkpoint = described(tree);
  for (const TensorEntry& tensor : checkpoint->catalog().tensors) {
    if (tensor.state == "param") continue;
    EXPECT_EQ(tensor.shape, (Shape{4, 3})) << tensor.state;
  }
}

}  // namespace

}  // namespace ebb
