// Every Megatron checkpoint that Megatron itself wrote, read and compared with what it said.
#include <gtest/gtest.h>
#include <simdjson.h>

#include <algorithm>

#include "ebb/formats/describe.h"
#include "tests/formats/megatron/support.h"
#include "tests/support/expected.h"
#include "tests/support/source_tree.h"

namespace ebb {

namespace {

using megatron_test::case_folder;
using megatron_test::describe_case;

class MegatronFixture : public testing::TestWithParam<std::string> {};

TEST_P(MegatronFixture, HoldsWhatMegatronSaidItHolds) {
  const auto checkpoint = describe_case(GetParam());
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  const Catalog& catalog = (*checkpoint)->catalog();
  EXPECT_EQ(catalog.format, GetParam().starts_with("fsdp_") ? "megatron-fsdp" : "megatron");
  const auto expected = case_folder(GetParam()) / "expected.json";
  EXPECT_EQ(test_support::differences(**checkpoint, expected, test_support::Compare::tensors), "");
  EXPECT_EQ(megatron_test::value_differences(catalog, expected), "");
  EXPECT_TRUE(prove_coverage(catalog).has_value());
}

TEST_P(MegatronFixture, IsTheSameFromItsOwnFolder) {
  const auto parent = describe_case(GetParam());
  ASSERT_TRUE(parent.has_value());
  std::string folder;  // "": there is none above it
  for (const ValueEntry& value : (*parent)->catalog().values)
    if (value.key == "folder") folder = value.value.text;
  EXPECT_EQ(folder.empty(), GetParam().starts_with("fsdp_"));
  const auto own =
      formats::describe(test_support::load_tree(case_folder(GetParam()) / "data" / folder));
  ASSERT_TRUE(own.has_value()) << own.error().message;
  const auto expected = case_folder(GetParam()) / "expected.json";
  EXPECT_EQ(test_support::differences(**own, expected, test_support::Compare::tensors), "");
  EXPECT_EQ((*own)->catalog().step, (*parent)->catalog().step);
}

INSTANTIATE_TEST_SUITE_P(Cases, MegatronFixture, testing::ValuesIn(megatron_test::cases()),
                         [](const auto& one_case) { return one_case.param; });

using Summary = std::vector<std::pair<std::string, std::size_t>>;  // optimizer, parameters

Summary groups_of(const Catalog& catalog) {
  Summary out;
  for (const GroupEntry& group : catalog.groups)
    out.emplace_back(group.optimizer, group.params.size());
  return out;
}

// Megatron stores no names: its default rule tells biases and vectors, and experts, apart.
TEST(MegatronGroups, KnowTheirParametersWhereMegatronsRuleTells) {
  const auto adam = describe_case("adam_fully_reshardable_tp2_dp2");
  ASSERT_TRUE(adam.has_value());
  EXPECT_EQ(groups_of((*adam)->catalog()), (Summary{{"adamw", 7}, {"adamw", 6}}));
  for (const std::string& name : (*adam)->catalog().groups[1].params)
    EXPECT_TRUE(name.find("norm") != std::string::npos || name.ends_with(".bias")) << name;
  const auto experts = describe_case("moe_muon_ep2");
  ASSERT_TRUE(experts.has_value());
  EXPECT_EQ(groups_of((*experts)->catalog()), (Summary{{"muon", 4}, {"muon", 2}, {"adamw", 8}}));
  for (const std::string& name : (*experts)->catalog().groups[1].params)
    EXPECT_NE(name.find(".experts."), std::string::npos) << name;
}

TEST(MegatronGroups, CountStepsPerParameterForAdamOnly) {
  const auto checkpoint = describe_case("muon_layerwise_tp2_dp2");
  ASSERT_TRUE(checkpoint.has_value());
  const Catalog& catalog = (*checkpoint)->catalog();
  EXPECT_EQ(catalog.step, 3);
  ASSERT_EQ(groups_of(catalog), (Summary{{"muon", 5}, {"adamw", 8}}));
  EXPECT_EQ(catalog.param_steps.size(), 8u);
  for (const std::string& name : catalog.groups[1].params)
    EXPECT_EQ(catalog.param_steps.at(name), 3) << name;
}

TEST(MegatronGroups, OfFsdpAreTheParametersWithTheSameSettings) {
  const auto checkpoint = describe_case("fsdp_uneven_w3_muon");
  ASSERT_TRUE(checkpoint.has_value());
  EXPECT_EQ(groups_of((*checkpoint)->catalog()), (Summary{{"muon", 5}, {"adamw", 9}}));
}

// Their settings are stored under the name of the whole.
TEST(MegatronGroups, HalvesOfSwigluAreInTheGroupOfTheirWhole) {
  const auto checkpoint = describe_case("fsdp_swiglu_hsdp_outer_2x2_muon");
  ASSERT_TRUE(checkpoint.has_value());
  const auto& groups = (*checkpoint)->catalog().groups;
  ASSERT_EQ(groups_of((*checkpoint)->catalog()), (Summary{{"muon", 4}, {"adamw", 7}}));
  for (const char* half : {"layers.0.linear_fc1.weight_w", "layers.0.linear_fc1.weight_v"})
    EXPECT_EQ(std::count(groups[0].params.begin(), groups[0].params.end(), half), 1) << half;
}

class MegatronLayerWise : public testing::TestWithParam<const char*> {};

// B24, B12: layer-wise state is one whole chunk per TP-local matrix, or of each half of its SwiGLU,
// from its owner only; an expert's owner is one of the expert's own ranks.
TEST_P(MegatronLayerWise, StateIsWholeAtItsOwnerAtTheModelsOwnOffsets) {
  const auto checkpoint = describe_case(GetParam());
  ASSERT_TRUE(checkpoint.has_value());
  const Catalog& catalog = (*checkpoint)->catalog();
  for (const TensorEntry& tensor : catalog.tensors) {
    if (tensor.state != "momentum_buffer") continue;
    const auto model = std::find_if(
        catalog.tensors.begin(), catalog.tensors.end(),
        [&](const auto& other) { return other.name == tensor.name && other.state == "param"; });
    ASSERT_NE(model, catalog.tensors.end());
    const auto boxes = [](const TensorEntry& entry) {
      std::vector<Shape> out;
      for (const Chunk& chunk : entry.chunks) out.push_back(chunk.box.offset);
      std::sort(out.begin(), out.end());
      return out;
    };
    EXPECT_EQ(boxes(tensor), boxes(*model)) << tensor.name;
    EXPECT_TRUE(prove_coverage(tensor, catalog).has_value()) << tensor.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, MegatronLayerWise,
                         testing::Values("muon_layerwise_tp2_dp2", "moe_muon_ep2_dp2"),
                         [](const auto& one_case) { return std::string(one_case.param); });

// B3, B4, B13, B14, B19: offsets are sums of lower ranks' rows, in HSDP of those with the outer
// dimension first or of one replica, and a rank without rows has no chunk.
TEST(MegatronFsdp, ChunksAreTheRowsThatMegatronFsdpSaidEachRankHas) {
  for (const std::string& name : megatron_test::cases("fsdp_")) {
    const auto checkpoint = describe_case(name);
    ASSERT_TRUE(checkpoint.has_value());
    simdjson::dom::parser parser;
    simdjson::dom::element root;
    ASSERT_EQ(parser.load((case_folder(name) / "expected.json").string()).get(root),
              simdjson::SUCCESS);
    for (const auto& field : root["values"]["offsets_and_sizes_per_rank"].get_object()) {
      std::vector<std::string> wanted;
      for (const simdjson::dom::element rank : field.value.get_array())
        if (std::uint64_t rows = 0; rank.at(1).at(0).get(rows) == simdjson::SUCCESS && rows != 0)
          wanted.push_back(simdjson::minify(rank));
      std::sort(wanted.begin(), wanted.end());
      wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
      std::vector<std::string> found;
      for (const TensorEntry& tensor : (*checkpoint)->catalog().tensors) {
        if (*tensor.key != field.key) continue;
        for (const Chunk& chunk : tensor.chunks) {
          simdjson::dom::parser again;
          simdjson::dom::element pair;
          ASSERT_EQ(again
                        .parse("[" + formats::to_string(chunk.box.offset) + "," +
                               formats::to_string(chunk.box.extent) + "]")
                        .get(pair),
                    simdjson::SUCCESS);
          found.push_back(simdjson::minify(pair));
        }
      }
      std::sort(found.begin(), found.end());
      EXPECT_EQ(found, wanted) << name << " " << field.key;
    }
  }
}

}  // namespace

}  // namespace ebb
