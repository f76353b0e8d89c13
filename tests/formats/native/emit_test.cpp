// What emit_ebb() plans, carried out in memory, is a store that describe() reads and every check of
// the store's own recovery accepts.
#include <gtest/gtest.h>

#include <algorithm>

#include "ebb/formats/describe.h"
#include "ebb/formats/native/ebb.h"
#include "ebb/formats/native/survey.h"
#include "tests/support/emit_in_memory.h"
#include "tests/support/source_tree.h"

namespace ebb {

namespace {

using formats::to_json;
using test_support::MemoryTree;

// Tensors of any kind, their elements numbered bytes.
class Content : public Checkpoint {
 public:
  void add(std::string name, std::string state, DType dtype, Shape shape) {
    TensorEntry tensor;
    tensor.name = std::move(name);
    tensor.state = std::move(state);
    tensor.dtype = dtype;
    tensor.shape = std::move(shape);
    tensor.chunks.push_back({.box = formats::whole(tensor.shape), .tag = catalog_.tensors.size()});
    catalog_.tensors.push_back(std::move(tensor));
  }
  Catalog& catalog() { return catalog_; }
  const Catalog& catalog() const override { return catalog_; }
  Result<> read_chunk(const TensorEntry&, const Chunk& chunk, std::uint64_t first,
                      std::span<std::byte> into) const override {
    for (std::byte& byte : into) byte = static_cast<std::byte>(first++ * 7 + chunk.tag);
    return {};
  }

 private:
  Catalog catalog_;
};

// What an optimizer of any framework leaves: mixed groups, states of another shape than their
// parameter, dtypes, nothing, a scalar, values of every kind.
Content zoo() {
  Content content;
  content.add("w", "param", DType::bf16, {50, 33});
  content.add("w", "master", DType::f32, {50, 33});
  content.add("w", "momentum_buffer", DType::f32, {50, 33});
  content.add("w", "row_factor", DType::f64, {50});
  content.add("b", "param", DType::f16, {});
  content.add("b", "exp_avg", DType::f32, {});
  content.add("empty", "param", DType::f32, {0, 4});
  content.add("mask", "buffer", DType::boolean, {3, 5});
  content.add("indices", "tensor", DType::i64, {70000});
  Catalog& catalog = content.catalog();
  catalog.format = "toy";
  catalog.producer = "Toy 3";
  catalog.step = 12;
  catalog.param_steps = {{"w", 12}, {"b", 9}};
  Value betas;
  betas.kind = Value::Kind::tuple;
  betas.items = {Value::of_real(0.9), Value::of_real(1)};
  catalog.groups = {{"muon", {{"lr", Value::of_real(0.02)}, {"ns_steps", Value::of_int(5)}}, {"w"}},
                    {"", {}, {}},
                    {"adamw",
                     {{"betas", betas},
                      {"foreach", Value{}},
                      {"word", Value::of_string("5")},
                      {"eps", Value::of_real(2)},
                      {"name", Value::of_string("plain")}},
                     {"gone", "b"}}};
  Value nested;
  nested.kind = Value::Kind::dict;
  nested.entries = {{Value::of_string("last_epoch"), Value::of_int(3)}, {Value::of_int(1), betas}};
  catalog.values = {{"lr_scheduler", {"lr_scheduler"}, nested},
                    {"rng", {"rng"}, Value::of_bytes({std::byte{1}, std::byte{2}})},
                    {"deep.rng", {"deep", "rng"}, Value::of_bytes({std::byte{3}})},
                    {"step", {}, Value::of_int(12), true}};
  return content;
}

Layout layout_of(const Catalog& catalog, Policy policy, std::uint32_t world) {
  Layout::Spec spec{.policy = policy, .mesh = {world, 1}};
  std::vector<Shape> shapes;
  for (const TensorEntry& tensor : catalog.tensors) {
    shapes.push_back(tensor.shape);
    if (policy == Policy::layer_wise)
      spec.owners.push_back(static_cast<std::uint32_t>(shapes.size() % world));
  }
  auto layout = Layout::make(std::move(spec), std::move(shapes));
  EBB_CHECK(layout.has_value());
  return std::move(*layout);
}

std::shared_ptr<MemoryTree> store_of(const Checkpoint& content, Policy policy,
                                     std::uint32_t world) {
  const Layout layout = layout_of(content.catalog(), policy, world);
  auto plan = formats::emit_ebb({content.catalog(), layout});
  EBB_CHECK(plan.has_value());
  EXPECT_TRUE(plan->dropped.empty()) << plan->dropped.front();
  auto tree = test_support::carry_out(*plan, content, "out");
  EBB_CHECK(tree.has_value());
  return *tree;
}

class EbbEmit : public testing::TestWithParam<std::pair<Policy, std::uint32_t>> {};

TEST_P(EbbEmit, HoldsEveryTensorOnceWhateverTheCut) {
  const Content content = zoo();
  const auto tree = store_of(content, GetParam().first, GetParam().second);
  const auto again = formats::describe(tree);
  ASSERT_TRUE(again) << again.error().message;
  const Catalog& catalog = (*again)->catalog();
  EXPECT_EQ(catalog.format, "ebb");
  EXPECT_EQ(catalog.world, GetParam().second);
  EXPECT_EQ(catalog.step, 12);
  const auto covered = prove_coverage(catalog);
  EXPECT_TRUE(covered) << covered.error().message;
  ASSERT_EQ(catalog.tensors.size(), content.catalog().tensors.size());
  for (const TensorEntry& wanted : content.catalog().tensors) {
    const auto found = std::ranges::find_if(catalog.tensors, [&](const auto& tensor) {
      return tensor.name == wanted.name && tensor.state == wanted.state;
    });
    ASSERT_NE(found, catalog.tensors.end()) << wanted.name << " " << wanted.state;
    EXPECT_EQ(found->dtype, wanted.dtype);
    EXPECT_EQ(found->shape, wanted.shape);
    const auto bytes = test_support::elements_of(**again, *found);
    ASSERT_TRUE(bytes) << bytes.error().message;
    EXPECT_EQ(*bytes, *test_support::elements_of(content, wanted)) << wanted.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Cuts, EbbEmit,
                         testing::Values(std::pair(Policy::layer_wise, 3u),
                                         std::pair(Policy::layer_wise, 1u),
                                         std::pair(Policy::zero3, 7u), std::pair(Policy::rows, 4u),
                                         std::pair(Policy::zero12, 2u),
                                         std::pair(Policy::replicated, 2u)));

TEST(EbbEmitContent, GroupsSettingsStepsAndValuesComeBackAsTheyWere) {
  const Content content = zoo();
  const auto again = formats::describe(store_of(content, Policy::layer_wise, 3));
  ASSERT_TRUE(again) << again.error().message;
  const Catalog& catalog = (*again)->catalog();
  EXPECT_EQ(catalog.param_steps, content.catalog().param_steps);
  ASSERT_EQ(catalog.groups.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    const GroupEntry& wanted = content.catalog().groups[i];
    EXPECT_EQ(catalog.groups[i].optimizer, wanted.optimizer);
    EXPECT_EQ(catalog.groups[i].params, wanted.params);
    ASSERT_EQ(catalog.groups[i].settings.size(), wanted.settings.size());
    for (std::size_t k = 0; k < wanted.settings.size(); ++k) {
      EXPECT_EQ(catalog.groups[i].settings[k].first, wanted.settings[k].first);
      EXPECT_EQ(to_json(catalog.groups[i].settings[k].second), to_json(wanted.settings[k].second));
    }
  }
  for (const ValueEntry& wanted : content.catalog().values) {
    const auto found = std::ranges::find(catalog.values, wanted.key, &ValueEntry::key);
    ASSERT_NE(found, catalog.values.end()) << wanted.key;
    EXPECT_EQ(to_json(found->value), to_json(wanted.value));
    EXPECT_EQ(found->echoed, wanted.echoed);
  }
}

TEST(EbbEmitContent, ABitFlippedInATileIsFoundByItsBlock) {
  const Content content = zoo();
  const auto tree = store_of(content, Policy::zero3, 2);
  for (const auto& entry : tree->entries())
    if (entry.name.ends_with("-00001.data")) tree->bytes_of(entry.name)[4096 + 100] ^= std::byte{4};
  const auto again = formats::describe(tree);
  ASSERT_TRUE(again) << again.error().message;
  std::string message;
  for (const TensorEntry& tensor : (*again)->catalog().tensors)
    if (const auto bytes = test_support::elements_of(**again, tensor); !bytes)
      message = bytes.error().message;
  EXPECT_NE(message.find("-00001.data:4096"), std::string::npos) << message;
}

TEST(EbbEmitContent, AConvertedStoreIsNeverTakenForALeftover) {
  const Content content = zoo();
  const auto tree = store_of(content, Policy::zero3, 2);
  const auto folders = formats::native::store_folders(*tree);
  ASSERT_EQ(folders.size(), 1u);
  for (const auto& entry : tree->entries())
    if (entry.name.ends_with("rank-00001-of-00002/meta.ebb"))
      tree->bytes_of(entry.name)[8192 + 2000] ^= std::byte{1};
  const auto survey = formats::native::survey_store(*tree, folders.front());
  ASSERT_TRUE(survey) << survey.error().message;
  EXPECT_EQ(survey->committed(), 0u);
  EXPECT_FALSE(survey->leftover());
}

TEST(EbbEmitContent, TheSameContentGivesTheSameBytes) {
  const Content content = zoo();
  const auto one = store_of(content, Policy::zero3, 2);
  const auto two = store_of(content, Policy::zero3, 2);
  ASSERT_EQ(one->entries().size(), 4u);
  for (const auto& entry : one->entries())
    EXPECT_EQ(one->bytes_of(entry.name), two->bytes_of(entry.name)) << entry.name;
}

TEST(EbbEmitContent, WhatAStoreCannotHoldIsNamed) {
  Content content = zoo();
  content.add("tiny", "param", DType::f4, {8});
  Value object;
  object.kind = Value::Kind::object;
  object.text = "some.Class";
  content.catalog().values.push_back({"thing", {}, object});
  const Layout layout = layout_of(content.catalog(), Policy::zero3, 2);
  const auto plan = formats::emit_ebb({content.catalog(), layout});
  ASSERT_TRUE(plan) << plan.error().message;
  ASSERT_EQ(plan->dropped.size(), 2u);
  EXPECT_EQ(plan->dropped[0], "value \"thing\": holds an object of class some.Class");
  EXPECT_NE(plan->dropped[1].find("\"tiny (param)\""), std::string::npos) << plan->dropped[1];
  EXPECT_EQ(plan->omitted, std::vector<std::uint32_t>{9});
}

TEST(EbbEmitContent, TwoTensorsOfOneNameAndStateAreRefused) {
  Content content = zoo();
  content.add("w", "master", DType::f32, {50, 33});
  const Layout layout = layout_of(content.catalog(), Policy::zero3, 2);
  const auto plan = formats::emit_ebb({content.catalog(), layout});
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, Code::layout);
}

}  // namespace

}  // namespace ebb
