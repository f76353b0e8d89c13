#include "ebb/formats/catalog/value_json.h"

#include <gtest/gtest.h>

#include <limits>

namespace ebb {

namespace {

using Kind = Value::Kind;

std::vector<Value> one_of_each() {
  std::vector<Value> values = {Value{},
                               Value::of_bool(true),
                               Value::of_int(-7),
                               Value::of_int(std::numeric_limits<std::int64_t>::min()),
                               Value::of_real(0.1),
                               Value::of_real(2.0),
                               Value::of_real(std::numeric_limits<double>::infinity()),
                               Value::of_string("a\n\"é"),
                               Value::of_bytes({std::byte{0}, std::byte{0xfe}})};
  Value complex;
  complex.kind = Kind::complex;
  complex.real = 1.5;
  complex.imaginary = -std::numeric_limits<double>::infinity();
  Value big;
  big.kind = Kind::big_integer;
  big.text = "340282366920938463463374607431768211456";
  Value dtype;
  dtype.kind = Kind::dtype;
  dtype.dtype = DType::bf16;
  Value object;
  object.kind = Kind::object;
  object.text = "module.Class";
  Value tensor;
  tensor.kind = Kind::tensor;
  tensor.items = {Value::of_int(3)};
  tensor.text = "ab";
  values.insert(values.end(), {complex, big, dtype, object, tensor});
  for (const Kind kind : {Kind::list, Kind::tuple, Kind::set, Kind::size}) {
    Value list;
    list.kind = kind;
    list.items = {Value::of_int(1), Value::of_int(2)};
    values.push_back(list);
  }
  Value dict;
  dict.kind = Kind::dict;
  dict.entries = {{Value::of_string("a"), values[4]}, {Value::of_string("b"), values.back()}};
  values.push_back(dict);
  dict.entries.emplace_back(Value::of_int(1), dict);
  values.push_back(dict);
  return values;
}

TEST(ValueJson, EveryKindOfValueComesBack) {
  for (const Value& value : one_of_each()) {
    const ValueEntry entry{"key", {"a", std::int64_t{3}}, value};
    const std::string json = formats::values_json({entry});
    const auto back = formats::read_values_json(json, "x");
    ASSERT_TRUE(back) << back.error().message << " " << json;
    ASSERT_EQ(back->size(), 1u);
    EXPECT_EQ(back->front().key, "key");
    EXPECT_EQ(back->front().path, entry.path);
    EXPECT_EQ(back->front().value.kind, value.kind) << json;
    EXPECT_EQ(formats::to_json(back->front().value), formats::to_json(value));
  }
}

TEST(ValueJson, GroupsAndStepsComeBack) {
  const std::vector<GroupEntry> groups = {
      {"muon", {{"lr", Value::of_real(0.02)}, {"nesterov", Value::of_bool(true)}}, {"a", "b"}}};
  const auto back = formats::read_groups_json(formats::groups_json(groups), "x");
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(formats::groups_json(*back), formats::groups_json(groups));
  const std::map<std::string, std::int64_t> steps = {{"a", 3}, {"b\"", 4}};
  const auto same = formats::read_param_steps_json(formats::param_steps_json(steps), "x");
  ASSERT_TRUE(same);
  EXPECT_EQ(*same, steps);
}

TEST(ValueJson, AStepCounterTakesNoMoreThanIsSaid) {
  std::map<std::string, std::int64_t> steps;
  std::size_t most = 2;  // the braces
  for (const char* name : {"w", "layer.\"quoted\".w", "a\nb", "\xc3\xa9"}) {
    steps[name] = std::numeric_limits<std::int64_t>::max();
    most += formats::param_step_bytes(name);
    EXPECT_LE(formats::param_steps_json(steps).size(), most);
    EXPECT_GE(formats::param_steps_json(steps).size() + 2 * steps.size() + 2, most);
  }
}

TEST(ValueJson, WhatIsMalformedIsRefusedInOneSentence) {
  for (const char* json : {"", "[", "{}", "[1]", "[[\"k\", [], 1, 2]]", "[[1, [], 1]]",
                           "[[\"k\", [], {\"$bytes\": \"0\"}]]", "[[\"k\", [], {\"$x\": 1}]]",
                           "[[\"k\", [], {\"$int\": \"1e3\"}]]", "[[\"k\", [1.5], 1]]"}) {
    const auto values = formats::read_values_json(json, "x");
    ASSERT_FALSE(values) << json;
    EXPECT_TRUE(values.error().message.starts_with("x: ")) << values.error().message;
  }
  EXPECT_FALSE(formats::read_values_json(std::string(5000, '['), "x"));
}

}  // namespace

}  // namespace ebb
