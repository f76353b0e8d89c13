#include "ebb/formats/catalog/value.h"

#include <gtest/gtest.h>

#include <limits>

#include "ebb/formats/catalog/value_alike.h"

namespace ebb::formats {
namespace {

using Kind = Value::Kind;

Value of_kind(Kind kind, std::vector<Value> items) {
  Value value;
  value.kind = kind;
  value.items = std::move(items);
  return value;
}

Value dict(std::vector<std::pair<Value, Value>> entries) {
  Value value;
  value.kind = Kind::dict;
  value.entries = std::move(entries);
  return value;
}

TEST(Value, JsonHoldsWhatJsonCan) {
  EXPECT_EQ(to_json(Value{}), "null");
  EXPECT_EQ(to_json(Value::of_bool(true)), "true");
  EXPECT_EQ(to_json(Value::of_int(-5)), "-5");
  EXPECT_EQ(to_json(Value::of_real(0.1)), "0.1");
  EXPECT_EQ(to_json(Value::of_real(2)), "2.0");
  EXPECT_EQ(to_json(Value::of_real(-1e-7)), "-1e-07");
  EXPECT_EQ(to_json(Value::of_string("\xc3\xbcn\xc3\xaf \"x\"\n")),
            "\"\xc3\xbcn\xc3\xaf \\\"x\\\"\\n\"");
  EXPECT_EQ(to_json(of_kind(Kind::list, {Value::of_int(1), of_kind(Kind::list, {})})), "[1, []]");
  EXPECT_EQ(to_json(dict({{Value::of_string("lr"), Value::of_real(0.02)},
                          {Value::of_string("nesterov"), Value::of_bool(false)}})),
            R"({"lr": 0.02, "nesterov": false})");
}

TEST(Value, JsonTagsWhatJsonLacks) {
  EXPECT_EQ(to_json(of_kind(Kind::tuple, {Value::of_int(1), Value::of_string("x")})),
            R"({"$tuple": [1, "x"]})");
  EXPECT_EQ(to_json(of_kind(Kind::size, {Value::of_int(3), Value::of_int(4)})),
            R"({"$size": [3, 4]})");
  EXPECT_EQ(to_json(Value::of_bytes({std::byte{0}, std::byte{0xff}, std::byte{0x61}})),
            R"({"$bytes": "00ff61"})");
  EXPECT_EQ(to_json(Value::of_real(std::numeric_limits<double>::quiet_NaN())),
            R"({"$float": "nan"})");
  EXPECT_EQ(to_json(Value::of_real(-std::numeric_limits<double>::infinity())),
            R"({"$float": "-inf"})");
  Value value;
  value.kind = Kind::big_integer;
  value.text = "9223372036854775819";
  EXPECT_EQ(to_json(value), R"({"$int": "9223372036854775819"})");
  value.kind = Kind::object;
  value.text = "builtins.eval";
  EXPECT_EQ(to_json(value), R"({"$object": "builtins.eval"})");
  value.kind = Kind::complex;
  value.real = 1.5;
  value.imaginary = -2;
  EXPECT_EQ(to_json(value), R"({"$complex": [1.5, -2.0]})");
  value.kind = Kind::dtype;
  value.dtype = DType::bf16;
  EXPECT_EQ(to_json(value), R"({"$dtype": "BF16"})");
  value.kind = Kind::tensor;
  value.dtype = DType::i64;
  value.items = {Value::of_int(2)};
  value.text = "0c73";
  EXPECT_EQ(to_json(value), R"({"$tensor": {"dtype": "I64", "shape": [2], "sha256": "0c73"}})");
}

TEST(Value, IntegersThatADoubleCannotHoldAreTagged) {
  EXPECT_EQ(to_json(Value::of_int((std::int64_t{1} << 53) - 1)), "9007199254740991");
  EXPECT_EQ(to_json(Value::of_int(std::int64_t{1} << 53)), R"({"$int": "9007199254740992"})");
  EXPECT_EQ(to_json(Value::of_int(std::numeric_limits<std::int64_t>::min())),
            R"({"$int": "-9223372036854775808"})");
}

TEST(Value, SetsHaveOneOrder) {
  EXPECT_EQ(to_json(of_kind(Kind::set, {Value::of_string("b"), Value::of_int(3),
                                        Value::of_string("a"), Value::of_int(1)})),
            R"({"$set": [1, 3, "a", "b"]})");
}

TEST(Value, DictsWithOtherKeysOrKeysLikeTagsAreListsOfPairs) {
  EXPECT_EQ(to_json(dict({{Value::of_int(0), Value::of_string("x")}})), R"({"$dict": [[0, "x"]]})");
  EXPECT_EQ(to_json(dict({{Value::of_string("$tuple"), Value{}}})),
            R"({"$dict": [["$tuple", null]]})");
}

TEST(Value, FindsEntriesByTheirStringKey) {
  const Value value =
      dict({{Value::of_int(1), Value::of_int(10)}, {Value::of_string("step"), Value::of_int(3)}});
  ASSERT_NE(value.find("step"), nullptr);
  EXPECT_EQ(value.find("step")->integer, 3);
  EXPECT_EQ(value.find("1"), nullptr);
}

TEST(ValuesAlike, AreNumbersAndSequencesWhateverTheirKindAndDictsInAnyOrder) {
  EXPECT_TRUE(alike(Value::of_int(2), Value::of_real(2)));
  EXPECT_FALSE(alike(Value::of_int(2), Value::of_real(2.5)));
  EXPECT_FALSE(alike(Value::of_int(1), Value::of_bool(true)));
  const std::vector<Value> pair = {Value::of_real(0.9), Value::of_int(1)};
  EXPECT_TRUE(alike(of_kind(Kind::tuple, pair), of_kind(Kind::list, pair)));
  const Value a = Value::of_string("a"), b = Value::of_string("b");
  EXPECT_TRUE(alike(dict({{a, pair[0]}, {b, pair[1]}}), dict({{b, pair[1]}, {a, pair[0]}})));
  EXPECT_FALSE(alike(dict({{a, pair[0]}}), dict({{b, pair[0]}})));
}

TEST(ValuesAlike, TellsWhereTheyAreNot) {
  const Value a = Value::of_string("a"), b = Value::of_string("b"), c = Value::of_string("c");
  const Value left = dict({{a, of_kind(Kind::list, {a, b})}, {b, a}});
  const Value right = dict({{a, of_kind(Kind::tuple, {a, c, c})}, {c, a}});
  std::vector<std::string> paths;
  for (const auto& [path, one, other] : differences(left, right, 10))
    paths.push_back(path + (one == nullptr ? " right" : other == nullptr ? " left" : " both"));
  EXPECT_EQ(paths, (std::vector<std::string>{".a.1 both", ".a.2 right", ".b left", ".c right"}));
  EXPECT_EQ(differences(left, right, 2).size(), 2u);
}

}  // namespace
}  // namespace ebb::formats
