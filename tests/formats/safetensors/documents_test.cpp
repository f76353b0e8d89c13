// What is no tensor goes into __metadata__ and comes back as it was, or is listed with a reason;
// what others put there is theirs.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "ebb/formats/catalog/value_json.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/safetensors/safetensors.h"
#include "tests/support/safetensors_file.h"
#include "tests/support/source_tree.h"

namespace ebb {

namespace {

using Kind = Value::Kind;
using test_support::MemoryTree;
using test_support::safetensors_with;

Value of_kind(Kind kind, std::vector<Value> items) {
  Value value = Value::of_list(std::move(items));
  value.kind = kind;
  return value;
}

Value dict_of(std::vector<std::pair<Value, Value>> entries) {
  Value value;
  value.kind = Kind::dict;
  value.entries = std::move(entries);
  return value;
}

Value number_tensor() {
  Value value = of_kind(Kind::tensor, {Value::of_int(2)});
  value.dtype = DType::u8;
  value.raw = {std::byte{7}, std::byte{8}};
  return value;
}

Catalog documents() {
  Catalog catalog;
  catalog.step = (std::int64_t{1} << 60) + 1;
  catalog.groups = {
      {"muon", {{"lr", Value::of_real(0.1)}, {"nesterov", Value::of_bool(true)}}, {"w", "é\""}},
      {"adamw",
       {{"betas", of_kind(Kind::tuple, {Value::of_real(0.9), Value::of_real(0.95)})}},
       {"b"}}};
  catalog.param_steps = {{"w", (std::int64_t{1} << 53) + 1}, {"b", 3}};
  Value big;
  big.kind = Kind::big_integer;
  big.text = "340282366920938463463374607431768211456";
  const double infinity = std::numeric_limits<double>::infinity();
  catalog.values = {
      {"note", {"note"}, Value::of_string("a text")},
      {"big", {}, Value::of_list({big, Value::of_int((std::int64_t{1} << 53) + 1)})},
      {"odd", {}, Value::of_list({Value::of_real(-infinity), Value::of_real(-0.0)})},
      {"blob", {}, Value::of_bytes({std::byte{0}, std::byte{255}})},
      {"keyed", {}, dict_of({{Value::of_int(3), Value{}}, {Value::of_string("$x"), Value{}}})},
      {"nested", {"a", std::int64_t{1}}, Value::of_string("in its place")},
      {"ebb.mine", {}, Value::of_string("a key like ours")}};
  return catalog;
}

Result<EmitPlan> emit(const Catalog& catalog, std::uint32_t ranks = 1,
                      std::uint64_t file_bytes = ~std::uint64_t{0}) {
  std::vector<Shape> shapes;
  for (const auto& entry : catalog.tensors) shapes.push_back(entry.shape);
  Layout::Spec spec;
  spec.policy = ranks == 1 ? Policy::replicated : Policy::rows;
  spec.mesh.shard_world = ranks;
  EBB_TRY_ASSIGN(const Layout layout, Layout::make(spec, shapes));
  formats::EmitRequest request{catalog, layout};
  request.file_bytes = file_bytes;
  return formats::emit_safetensors(request);
}

// Tensors are zeros.
std::shared_ptr<MemoryTree> write(const EmitPlan& plan) {
  auto tree = std::make_shared<MemoryTree>("out");
  for (const auto* files : {&plan.files, &plan.commit_files})
    for (const OutputFile& file : *files) {
      ByteVector bytes(file.size);
      for (const auto& fragment : file.fragments)
        if (const auto* literal = std::get_if<ByteVector>(&fragment.data))
          std::ranges::copy(*literal, bytes.begin() + static_cast<std::ptrdiff_t>(fragment.offset));
      tree->add(file.name, std::move(bytes));
    }
  return tree;
}

Catalog read(std::shared_ptr<const MemoryTree> tree) {
  auto checkpoint = formats::describe_safetensors(std::move(tree));
  EXPECT_TRUE(checkpoint) << checkpoint.error().message;
  return checkpoint ? (*checkpoint)->catalog() : Catalog{};
}

void expect_same_values(const Catalog& wanted, const Catalog& found) {
  EXPECT_EQ(found.step, wanted.step);
  EXPECT_EQ(found.param_steps, wanted.param_steps);
  EXPECT_EQ(formats::groups_json(found.groups), formats::groups_json(wanted.groups));
  EXPECT_EQ(formats::values_json(found.values), formats::values_json(wanted.values));
}

TEST(SafetensorsDocuments, ComeBackAsTheyWere) {
  const Catalog catalog = documents();
  const auto plan = emit(catalog);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_TRUE(plan->dropped.empty()) << plan->dropped.front();
  expect_same_values(catalog, read(write(*plan)));
}

TEST(SafetensorsDocuments, AreInTheFirstFileOnly) {
  Catalog catalog = documents();
  for (const char* name : {"a", "b", "c"})
    catalog.tensors.push_back({std::nullopt, {}, name, "param", DType::f32, {4}, {}});
  for (const std::uint32_t ranks : {1u, 2u}) {
    const auto plan = emit(catalog, ranks, 16);
    ASSERT_TRUE(plan) << plan.error().message;
    ASSERT_GT(plan->files.size(), 1u);
    const auto tree = write(*plan);
    std::vector<std::string> with;
    for (const auto& file : plan->files)
      if (formats::text_of(tree->bytes_of(file.name)).find("ebb.values") != std::string::npos)
        with.push_back(file.name);
    EXPECT_EQ(with, std::vector<std::string>{plan->files.front().name});
    expect_same_values(catalog, read(tree));
  }
}

TEST(SafetensorsDocuments, TensorsInValuesComeBackOrAreListed) {
  Catalog catalog;
  catalog.values = {{"blob", {}, of_kind(Kind::tuple, {number_tensor()})}};
  const auto plan = emit(catalog);
  ASSERT_TRUE(plan);
  EXPECT_TRUE(plan->dropped.empty());
  const Catalog back = read(write(*plan));
  ASSERT_EQ(back.values.size(), 1u);
  EXPECT_EQ(back.values[0].value.items.at(0).raw, number_tensor().raw);
  catalog.values[0].value.items[0].raw.clear();
  const auto digest_only = emit(catalog);
  ASSERT_TRUE(digest_only);
  EXPECT_EQ(
      digest_only->dropped,
      std::vector<std::string>{"value 'blob': it has a tensor that is known by its digest only"});
}

TEST(SafetensorsDocuments, WhatWouldNotComeBackEqualIsListedWithTheReason) {
  Catalog catalog = documents();
  Value deep;
  for (int i = 0; i < 1100; ++i) deep = Value::of_list({std::move(deep)});
  catalog.values = {{"latin", {}, Value::of_string("\xe9")},
                    {"marked", {}, dict_of({{Value::of_string("$ebb.tensor"), Value{}}})},
                    {"deep", {}, deep},
                    {"many", {}, Value::of_list(std::vector<Value>(std::size_t{3} << 20))},
                    {"wide", {}, Value::of_bytes(ByteVector(60'000'000))},
                    {"kept", {}, Value::of_int(1)}};
  catalog.groups[0].settings.emplace_back("name", Value::of_string("\xff"));
  catalog.param_steps["\x80"] = 1;
  const auto plan = emit(catalog);
  ASSERT_TRUE(plan) << plan.error().message;
  const std::string utf8 = "it has text that is not UTF-8";
  const std::string big = "it does not fit the header, which has 100 MB at most";
  EXPECT_EQ(plan->dropped,
            (std::vector<std::string>{
                "parameter group 0 with 3 settings: " + utf8, "the steps of 3 parameters: " + utf8,
                "value 'latin': " + utf8, "value 'marked': it has a key of ours",
                "value 'deep': it would come back changed", "value 'many': " + big,
                "value 'wide': " + big}));
  const Catalog back = read(write(*plan));
  EXPECT_EQ(back.step, catalog.step);
  ASSERT_EQ(back.groups.size(), 1u);
  ASSERT_EQ(back.values.size(), 1u);
  EXPECT_EQ(back.values[0].key, "kept");
}

TEST(SafetensorsDocuments, OfOthersAreTextsOfTheirs) {
  for (const char* marker : {"", "\"ebb\":\"tide\",", "\"ebb\":\"2\","}) {
    const Catalog catalog = read(safetensors_with(
        std::string(marker) + "\"ebb.step\":\"soon\",\"ebb.values\":\"[\",\"ebb.identity\":\"x\""));
    EXPECT_FALSE(catalog.step);
    EXPECT_EQ(catalog.values.size(), *marker == 0 ? 3u : 4u);
    EXPECT_NE(catalog.producer, "Ebb");
  }
}

TEST(SafetensorsDocuments, ThatAreDamagedAreRefusedByFileOffsetAndKey) {
  const std::string ours = "\"ebb\":\"1 added:\",";
  for (const auto& [field, says] : std::vector<std::pair<std::string, std::string>>{
           {"\"ebb.step\":\"1e3\"", "'ebb.step': '1e3' is no whole number"},
           {"\"ebb.step\":\"\"", "'ebb.step': '' is no whole number"},
           {"\"ebb.step\":\"99999999999999999999\"", "is no whole number"},
           {"\"ebb.groups\":\"[1]\"", "'ebb.groups': JSON, but not of the form"},
           {"\"ebb.param_steps\":\"{\\\"a\\\": 1.5}\"", "'ebb.param_steps': JSON, but not"},
           {"\"ebb.values\":\"[\"", "'ebb.values': not JSON"},
           {"\"ebb.values\":\"" + std::string(std::size_t{3} << 20, '[') + "\"",
            "'ebb.values': more than 2097152 items"}}) {
    const auto refused = formats::describe_safetensors(safetensors_with(ours + field));
    ASSERT_FALSE(refused) << says;
    EXPECT_NE(refused.error().message.find(says), std::string::npos) << refused.error().message;
    const std::size_t value = 8 + 17 + ours.size() + field.find(':') + 1;
    EXPECT_NE(refused.error().message.find("model.safetensors:" + std::to_string(value) + ": "),
              std::string::npos)
        << refused.error().message;
  }
}

TEST(SafetensorsDocuments, FilesOfTwoSavesAreRefused) {
  const auto one = safetensors_with("\"ebb\":\"1 added:\",\"ebb.step\":\"3\"");
  const auto two = safetensors_with("\"ebb\":\"1 added:\",\"ebb.step\":\"4\"");
  auto both = std::make_shared<MemoryTree>("t");
  both->add("a.safetensors", one->bytes_of("model.safetensors"));
  both->add("b.safetensors", two->bytes_of("model.safetensors"));
  const auto refused = formats::describe_safetensors(both);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::corrupt);
  EXPECT_TRUE(refused.error().message.ends_with(
      "__metadata__: 'ebb.step' says 4, another file says 3: two saves are mixed"))
      << refused.error().message;
}

}  // namespace

}  // namespace ebb
