// What is written for torch_checkpointing is what is read again; tests/judges lets the package
// itself load it.
#include <gtest/gtest.h>

#include <filesystem>

#include "ebb/formats/describe.h"
#include "ebb/formats/torch_checkpointing/metadata.h"
#include "ebb/formats/torch_checkpointing/torch_checkpointing.h"
#include "tests/support/emit_in_memory.h"
#include "tests/support/expected.h"
#include "tests/support/source_tree.h"

namespace ebb {
namespace {

namespace fs = std::filesystem;
namespace tck = formats::torch_checkpointing;

const fs::path kSources = fs::path(EBB_FIXTURES) / "torch_checkpointing";

std::unique_ptr<Checkpoint> read(const fs::path& folder) {
  auto checkpoint = formats::describe(test_support::load_tree(folder / "data"));
  EBB_CHECK(checkpoint.has_value());
  return std::move(*checkpoint);
}

Result<EmitPlan> planned(const Catalog& content, Layout::Spec spec) {
  std::vector<Shape> shapes;
  for (const TensorEntry& tensor : content.tensors) shapes.push_back(tensor.shape);
  const auto layout = Layout::make(std::move(spec), std::move(shapes));
  EBB_CHECK(layout.has_value());
  return formats::emit_torch_checkpointing({content, *layout});
}

std::shared_ptr<test_support::MemoryTree> written(const Checkpoint& content, Layout::Spec spec) {
  const auto plan = planned(content.catalog(), std::move(spec));
  EXPECT_TRUE(plan.has_value()) << plan.error().message;
  EXPECT_TRUE(plan->dropped.empty());
  const auto tree = test_support::carry_out(*plan, content, "out");
  EBB_CHECK(tree.has_value());
  return *tree;
}

struct Cut {
  Policy policy = Policy::rows;
  formats::Mesh mesh = {};
};

class TorchCheckpointingCuts : public testing::TestWithParam<Cut> {};

TEST_P(TorchCheckpointingCuts, WritesWhatItReadsBack) {
  const auto [policy, mesh] = GetParam();
  for (const char* name : {"trained_w3", "placements_w4"}) {
    const auto content = read(kSources / name);
    const auto again = formats::describe(written(*content, {.policy = policy, .mesh = mesh}));
    ASSERT_TRUE(again.has_value()) << again.error().message;
    EXPECT_EQ((*again)->catalog().format, "torch-checkpointing");
    EXPECT_EQ((*again)->catalog().world, mesh.ranks());
    EXPECT_EQ(test_support::differences(**again, kSources / name / "expected.json",
                                        test_support::Compare::tensors_and_values),
              "");
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cuts, TorchCheckpointingCuts,
    testing::Values(Cut{}, Cut{.mesh = {.shard_world = 2}}, Cut{.mesh = {.shard_world = 5}},
                    Cut{.mesh = {.shard_world = 2, .replicas = 2}},
                    Cut{Policy::replicated, {.shard_world = 1, .replicas = 2}}));

// As FSDP2 has them: parameters in rows, buffers and counters whole, these beside the processor.
TEST(TorchCheckpointingEmit, SaysInItsMetadataWhatAJobSays) {
  const auto content = read(kSources / "trained_w3");
  const auto tree = written(*content, {.policy = Policy::rows, .mesh = {.shard_world = 2}});
  const auto metadata = tck::read_metadata(**tree->open("metadata.pkl"));
  ASSERT_TRUE(metadata.has_value()) << metadata.error().message;
  EXPECT_EQ(metadata->world, 2u);
  EXPECT_EQ(metadata->items.size(), 3u);  // model, optim, rng: a step is no tensor
  const auto& model = metadata->items.at("model").tensors;
  EXPECT_TRUE(model.at("[\"up.weight\"]").at(0).is_cut());
  EXPECT_EQ(model.at("[\"up.weight\"]").at(0).part_of(1)->boxes.at(0).box.offset, (Shape{4, 0}));
  EXPECT_FALSE(model.at("[\"scale\"]").at(0).is_cut());
  const auto& optim = metadata->items.at("optim").tensors;
  EXPECT_TRUE(optim.at("[\"state\",\"up.bias\",\"exp_avg\"]").at(0).is_cut());
  EXPECT_FALSE(optim.at("[\"state\",\"up.bias\",\"step\"]").at(0).is_cut());
  const std::string_view bytes = formats::text_of(tree->bytes_of("metadata.pkl"));
  EXPECT_NE(bytes.find("cuda"), std::string_view::npos);
  EXPECT_NE(bytes.find("cpu"), std::string_view::npos);
}

TEST(TorchCheckpointingEmit, RefusesWhatNoItemHolds) {
  const auto content = read(kSources / "trained_w3");
  const auto cut =
      planned(content->catalog(), {.policy = Policy::zero3, .mesh = {.shard_world = 2}});
  ASSERT_FALSE(cut.has_value());
  EXPECT_EQ(cut.error().code, Code::unsupported);
  EXPECT_EQ(cut.error().hint, "--partition rows");
  Catalog flat;
  flat.tensors.push_back(
      {.key = "a.b", .path = {std::string("a.b")}, .name = "a.b", .state = "tensor", .shape = {2}});
  const auto named = planned(flat, {.policy = Policy::rows});
  ASSERT_FALSE(named.has_value());
  EXPECT_NE(named.error().message.find("\"a.b\" is none"), std::string::npos)
      << named.error().message;
}

// As torchtitan saves its model; what is known by its key alone stays an item.
TEST(TorchCheckpointingEmit, MakesAModelAtTheTopAnItem) {
  Catalog content;
  for (const auto& [name, state] : {std::pair("a.b", "param"), std::pair("rng", "tensor")})
    content.tensors.push_back(
        {.key = name, .path = {std::string(name)}, .name = name, .state = state, .shape = {2}});
  content.parts.models.emplace_back();
  formats::respell_for_torch_checkpointing(content);
  EXPECT_EQ(content.tensors[0].key, "model.a.b");
  EXPECT_EQ(content.tensors[0].path.size(), 2u);
  EXPECT_EQ(content.tensors[1].key, "rng");
  EXPECT_TRUE(planned(content, {.policy = Policy::rows}).has_value());
}

}  // namespace
}  // namespace ebb
