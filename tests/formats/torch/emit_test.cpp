// What emit_torch() plans, carried out in memory, is what describe_torch() finds again; and the
// nesting, which tests/judges lets torch itself read.
#include <gtest/gtest.h>

#include <filesystem>

#include "ebb/formats/catalog/key_path.h"
#include "ebb/formats/conversion/content_check.h"
#include "ebb/formats/dcp/dcp.h"
#include "ebb/formats/state_dict/names.h"
#include "ebb/formats/torch_save/torch_save.h"
#include "tests/formats/torch/torch_fixtures.h"
#include "tests/libswap/transfer/memory_checkpoint.h"
#include "tests/support/emit_in_memory.h"
#include "tests/support/expected.h"

namespace ebb {

namespace {

namespace fs = std::filesystem;
using formats::describe_torch;
using formats::PathItem;
using libswap::testing::MemoryCheckpoint;
using libswap::testing::Random;

Result<EmitPlan> planned(const Catalog& content) {
  std::vector<Shape> shapes;
  for (const TensorEntry& tensor : content.tensors) shapes.push_back(tensor.shape);
  const auto layout = Layout::make({.policy = Policy::replicated}, std::move(shapes));
  EBB_CHECK(layout.has_value());
  return formats::emit_torch({content, *layout});
}

std::unique_ptr<Checkpoint> written(const Checkpoint& content) {
  const auto plan = planned(content.catalog());
  EXPECT_TRUE(plan.has_value()) << plan.error().message;
  EXPECT_TRUE(plan->dropped.empty());
  const auto tree = test_support::carry_out(*plan, content, "out");
  EBB_CHECK(tree.has_value());
  auto again = describe_torch(*tree);
  EXPECT_TRUE(again.has_value()) << again.error().message;
  return again ? std::move(*again) : nullptr;
}

class TorchEmit : public testing::TestWithParam<std::string_view> {};

TEST_P(TorchEmit, WritesWhatItReadsBack) {
  const fs::path folder = kFixtures / GetParam();
  const auto content = describe_torch(test_support::load_tree(folder / "data"));
  ASSERT_TRUE(content.has_value());
  const auto again = written(**content);
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(test_support::differences(*again, folder / "expected.json",
                                      test_support::Compare::tensors_and_values),
            "");
  const auto places = [](const Catalog& catalog) {
    std::set<std::vector<PathItem>> paths;
    for (const auto& tensor : catalog.tensors) paths.insert(tensor.path);
    for (const auto& value : catalog.values) paths.insert(value.path);
    return paths;
  };
  EXPECT_EQ(places(again->catalog()), places((*content)->catalog()));
  const auto kinds = [](const Catalog& catalog) {
    std::set<std::pair<std::vector<PathItem>, Value::Kind>> found;
    for (const auto& container : catalog.containers) found.insert({container.path, container.kind});
    return found;
  };
  EXPECT_EQ(kinds(again->catalog()), kinds((*content)->catalog()));
}

INSTANTIATE_TEST_SUITE_P(Cases, TorchEmit,
                         testing::Values("deflated", "dtypes_views", "file_object_ordered_dict",
                                         "legacy_stream", "memo_past_256", "muon_adamw_state",
                                         "pickle_protocol4"));

// Dicts read from elsewhere may have keys that are neither text nor numbers; in a torch.save file
// they are found under Python's words for them.
TEST(TorchEmitValues, KeysOfEveryKindAreFoundAgain) {
  const auto key_of_kind = [](Value::Kind kind) {
    Value key;
    key.kind = kind;
    key.items = {Value::of_string("bf16"), Value::of_int(2)};
    key.integer = 1;
    key.real = 0.5;
    return key;
  };
  for (const auto kind : {Value::Kind::none, Value::Kind::boolean, Value::Kind::integer,
                          Value::Kind::real, Value::Kind::dtype, Value::Kind::tuple}) {
    Value dict = Value::of_dict();
    dict.entries.emplace_back(key_of_kind(kind), Value::of_list({Value::of_int(7)}));
    Catalog catalog;
    catalog.format = "made";
    catalog.values.push_back({"sizes", {}, Value::of_list({dict, dict})});
    MemoryCheckpoint content;
    content.catalog() = catalog;
    const auto again = written(content);
    ASSERT_NE(again, nullptr);
    EXPECT_EQ(formats::lost_content(catalog, EmitPlan{}, again->catalog()),
              std::vector<std::string>{})
        << to_json(dict);
  }
}

Catalog of_values(std::vector<std::vector<PathItem>> paths) {
  Catalog catalog;
  for (std::vector<PathItem>& path : paths)
    catalog.values.push_back({"v", std::move(path), Value::of_int(1)});
  return catalog;
}

TEST(TorchEmitNesting, KnowsListsTuplesNumberedDictsAndGaps) {
  Catalog catalog = of_values({{"list", 1, "x"},
                               {"list", 3},
                               {"tuple", 0},
                               {"tuple", 1, 0},
                               {"numbered", 0, "a"},
                               {"far", std::int64_t{1} << 40}});
  catalog.containers = {{{"numbered"}, Value::Kind::dict},
                        {{"empty"}, Value::Kind::dict},
                        {{"tuple"}, Value::Kind::tuple},
                        {{"tuple", 1}, Value::Kind::tuple}};
  MemoryCheckpoint content;
  content.catalog() = std::move(catalog);
  const auto again = written(content);
  ASSERT_NE(again, nullptr);
  std::map<std::string, std::string> found;
  for (const auto& value : again->catalog().values) found[value.key] = to_json(value.value);
  EXPECT_EQ(found, (std::map<std::string, std::string>{{"list.0", "null"},
                                                       {"list.1.x", "1"},
                                                       {"list.2", "null"},
                                                       {"list.3", "1"},
                                                       {"tuple.0", "1"},
                                                       {"tuple.1", "{\"$tuple\": [1]}"},
                                                       {"numbered.0.a", "1"},
                                                       {"far.1099511627776", "1"}}));
  const auto& kinds = again->catalog().containers;
  const auto is_dict = [&](const std::vector<PathItem>& path) {
    return std::any_of(kinds.begin(), kinds.end(), [&](const auto& container) {
      return container.path == path && container.kind == Value::Kind::dict;
    });
  };
  EXPECT_TRUE(is_dict({"numbered"}));
  EXPECT_TRUE(is_dict({"empty"}));
  EXPECT_TRUE(is_dict({"far"}));
  EXPECT_FALSE(is_dict({"list"}));
}

TEST(TorchEmitNesting, RefusesTwoEntriesAtOnePlaceAndBottomlessPaths) {
  for (Catalog catalog : {of_values({{"a"}, {"a"}}), of_values({{"a"}, {"a", "b"}}),
                          of_values({{"a", "b"}, {"a"}})}) {
    const auto plan = planned(catalog);
    ASSERT_FALSE(plan.has_value());
    EXPECT_EQ(plan.error().code, Code::layout);
    EXPECT_TRUE(plan.error().message.starts_with("two entries would be stored under the key \"a"));
  }
  const auto deep = planned(of_values({std::vector<PathItem>(257, "x")}));
  ASSERT_FALSE(deep.has_value());
  EXPECT_EQ(deep.error().code, Code::limit);
}

TEST(TorchEmitNesting, OfOtherContentIsAModelAndAnOptimizer) {
  Random random{3};
  MemoryCheckpoint content;
  const auto add = [&](std::string name, std::string state, DType dtype, Shape shape) {
    const std::uint32_t number = content.add(std::move(name), dtype, shape, random);
    content.catalog().tensors[number].state = std::move(state);
    content.add_chunk(number, formats::whole(shape), 0);
  };
  add("a.w", "param", DType::bf16, {4, 3});
  add("a.w", "master", DType::f32, {4, 3});
  add("a.w", "momentum_buffer", DType::f32, {4, 3});
  add("b", "master", DType::f8_e4m3, {});
  content.catalog().step = 9;
  content.catalog().groups = {{"muon", {{"lr", Value::of_real(0.02)}}, {"a.w", "b"}}};
  content.catalog().values = {{"lr_scheduler", {}, Value::of_string("x")}};
  const auto again = written(content);
  ASSERT_NE(again, nullptr);
  std::vector<std::string> keys;
  for (const auto& tensor : again->catalog().tensors) keys.push_back(*tensor.key);
  EXPECT_EQ(keys, (std::vector<std::string>{"model.a.w", "model.b", "optimizer.state.a.w.master",
                                            "optimizer.state.a.w.momentum_buffer"}));
  EXPECT_EQ(again->catalog().tensors[3].path,
            (std::vector<PathItem>{"optimizer", "state", "a.w", "momentum_buffer"}));
  EXPECT_EQ(again->catalog().step, 9);
  ASSERT_EQ(again->catalog().groups.size(), 1u);
  EXPECT_EQ(again->catalog().groups[0].optimizer, "muon");
  EXPECT_EQ(again->catalog().groups[0].params, (std::vector<std::string>{"a.w", "b"}));
}

TEST(TorchEmitValues, ListWhatWeightsOnlyWouldNotLoad) {
  Catalog catalog;
  Value object;
  object.kind = Value::Kind::object;
  object.text = "argparse.Namespace";
  object.items = {Value::of_list({}), Value{}};
  object.items[0].kind = Value::Kind::tuple;
  catalog.values = {{"args", {}, Value::of_list({object})}};
  catalog.tensors = {{"t", {}, "t", "tensor", DType::f4, {2}, {}}};
  const auto plan = planned(catalog);
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->dropped, (std::vector<std::string>{
                               "tensor \"t\": torch has no dtype F4",
                               "value \"args\": holds an object of class argparse.Namespace"}));
  EXPECT_EQ(plan->omitted, std::vector<std::uint32_t>{0});
}

// Keys of a dict are words to DCP, positions of a list numbers.
TEST(TorchEmitDcp, NumberedDictsStayDicts) {
  const auto content =
      describe_torch(test_support::load_tree(kFixtures / "muon_adamw_state" / "data"));
  ASSERT_TRUE(content.has_value());
  Catalog catalog = (*content)->catalog();
  formats::respell_for_dcp(catalog);
  std::vector<Shape> shapes;
  for (const TensorEntry& tensor : catalog.tensors) shapes.push_back(tensor.shape);
  const auto layout = Layout::make({.policy = Policy::replicated}, std::move(shapes));
  const auto plan = formats::emit_dcp({catalog, *layout});
  ASSERT_TRUE(plan.has_value());
  const auto tree = test_support::carry_out(*plan, **content, "out");
  const auto again = formats::describe_dcp(*tree);
  ASSERT_TRUE(again.has_value()) << again.error().message;
  std::set<std::vector<PathItem>> paths;
  for (const auto& tensor : (*again)->catalog().tensors) paths.insert(tensor.path);
  EXPECT_TRUE(paths.contains({"muon", "state", "1", "momentum_buffer"}));
  EXPECT_EQ((*again)->catalog().groups.size(), 2u);
}

// A list without a tensor or a dict in it is one value to DCP, and a tuple is.
TEST(TorchEmitDcp, ListsInListsAreOneValue) {
  Catalog catalog;
  const auto add = [&](std::vector<PathItem> path, Value value) {
    catalog.values.push_back({formats::joined(path), path, std::move(value)});
  };
  using Kind = Value::Kind;
  catalog.containers = {{{"rng", 0, "python"}, Kind::tuple}, {{"numbers"}, Kind::dict}};
  add({"rng", 0, "python", 0}, Value::of_int(3));
  add({"rng", 0, "python", 1}, Value::of_list({Value::of_int(7)}));
  add({"rng", 0, "torch"}, Value::of_int(1));
  add({"lists", 0, 0, 0}, Value::of_int(1));
  add({"lists", 0, 0, 1}, Value::of_int(2));
  add({"lists", 1}, Value::of_int(5));
  add({"numbers", 0}, Value::of_int(0));
  catalog.containers.push_back({{"lambdas", 0}, Kind::dict});  // of a scheduler, and empty
  add({"dicts"}, Value::of_list({Value::of_list({Value::of_dict({{"a", Value::of_int(1)}})})}));
  add({"part", 1}, Value::of_int(4));  // a tensor was in front of it
  add({"beside", 1, 0}, Value::of_int(6));
  add({"beside", 1, 1}, Value::of_int(7));
  catalog.tensors = {{"beside.0", {"beside", 0}, "t", "tensor", DType::f32, {2}, {}}};
  formats::respell_for_dcp(catalog);
  std::map<std::string, std::string> texts;
  for (const ValueEntry& value : catalog.values) texts[value.key] = to_json(value.value);
  EXPECT_EQ(texts, (std::map<std::string, std::string>{{"rng.0.python", R"({"$tuple": [3, [7]]})"},
                                                       {"rng.0.torch", "1"},
                                                       {"lists", "[[[1, 2]], 5]"},
                                                       {"numbers.0", "0"},
                                                       {"lambdas", "[{}]"},
                                                       {"dicts.0.0.a", "1"},
                                                       {"part.1", "4"},
                                                       {"beside.1", "[6, 7]"}}));
}

// A job's numbers count its model's parameters, which DCP and safetensors list otherwise.
TEST(TorchEmitOrder, OfAnotherCheckpointNamesNoNumbers) {
  using formats::ListOrder;
  const fs::path folder = fs::path(EBB_FIXTURES) / "dcp" / "numbers_ddp_w2" / "data";
  for (const ListOrder order : {ListOrder::unknown, ListOrder::of_the_model})
    for (const bool words : {true, false}) {
      auto content = formats::describe_dcp(test_support::load_tree(folder));
      ASSERT_TRUE(content.has_value());
      Catalog catalog = (*content)->catalog();
      const std::size_t numbers = formats::mere_numbers(catalog).size();
      ASSERT_EQ(numbers, 6u);
      catalog.listed = order;
      catalog.containers.push_back({{"optimizer", "state"}, Value::Kind::dict});
      for (TensorEntry& tensor : catalog.tensors)
        if (!words && tensor.path.size() == 4)
          tensor.path[2] = std::stoll(std::get<std::string>(tensor.path[2]));
      const auto plan = planned(catalog);
      ASSERT_TRUE(plan.has_value());
      const auto tree = test_support::carry_out(*plan, **content, "out");
      const auto again = describe_torch(*tree);
      ASSERT_TRUE(again.has_value()) << again.error().message;
      const bool named = order == ListOrder::of_the_model && !words;
      EXPECT_EQ(formats::mere_numbers((*again)->catalog()).size(), named ? 0 : numbers);
    }
}

using Names = std::vector<std::pair<std::string, std::string>>;

TEST(TorchNames, FollowTheShapesOfTheModelWhereTheyLeaveNoChoice) {
  const auto content =
      describe_torch(test_support::load_tree(kFixtures / "muon_adamw_state" / "data"));
  ASSERT_TRUE(content.has_value());
  const Catalog& catalog = (*content)->catalog();
  const auto named = [&](std::size_t tensor) {
    return Names::value_type{catalog.tensors[tensor].name, catalog.tensors[tensor].state};
  };
  EXPECT_EQ(named(0), (Names::value_type{"a.weight", "param"}));
  EXPECT_EQ(named(5), (Names::value_type{"a.weight", "momentum_buffer"}));
  EXPECT_EQ(named(6), (Names::value_type{"b.weight", "momentum_buffer"}));
  ASSERT_EQ(catalog.groups.size(), 2u);
  EXPECT_EQ(catalog.groups[0].params, (std::vector<std::string>{"a.weight", "b.weight"}));
  EXPECT_EQ(catalog.groups[1].params, (std::vector<std::string>{"a.bias", "n.weight", "n.bias"}));
}

}  // namespace

}  // namespace ebb
