// Leaves of a state dict put together to what was saved.
#include <gtest/gtest.h>

#include "ebb/formats/state_dict/state_dict.h"

namespace ebb::formats {
namespace {

using Path = std::vector<PathItem>;

TEST(ValueNesting, PutsLeavesTogetherUnlessTensorsOrGroupsLieBesideThem) {
  Catalog content;
  content.tensors.push_back({"model.w", Path{"model", "w"}, "w", "param"});
  content.values = {{"epoch", Path{"epoch"}, Value::of_int(3)},
                    {"cfg.a", Path{"cfg", "a"}, Value::of_bool(true)},
                    {"cfg.list.0", Path{"cfg", "list", 0}, Value::of_int(1)},
                    {"cfg.list.2", Path{"cfg", "list", 2}, Value::of_int(2)},
                    {"cfg.pair.0", Path{"cfg", "pair", 0}, Value::of_int(5)},
                    {"cfg.by.7", Path{"cfg", "by", 7}, Value::of_int(8)},
                    {"model.note", Path{"model", "note"}, Value::of_string("n")},
                    {"opt.lr", Path{"opt", "lr"}, Value::of_real(0.5), true},
                    {"opt.other", Path{"opt", "other"}, Value::of_int(1)},
                    {"bare", {}, Value::of_int(4)}};
  content.containers = {{Path{"cfg", "pair"}, Value::Kind::tuple},
                        {Path{"cfg", "by"}, Value::Kind::dict},
                        {Path{"nothing"}, Value::Kind::dict},
                        {Path{"model", "empty"}, Value::Kind::dict}};
  const auto values = values_in_one_piece(content);
  ASSERT_TRUE(values) << values.error().message;
  std::map<std::string, std::string> found;
  for (const ValueEntry& value : *values) found[value.key] = to_json(value.value);
  EXPECT_EQ(
      found,
      (std::map<std::string, std::string>{
          {"bare", "4"},
          {"cfg", R"({"a": true, "list": [1, null, 2], "pair": {"$tuple": [5]}, "by": {"$dict": )"
                  R"([[7, 8]]}})"},
          {"epoch", "3"},
          {"model.note", "\"n\""},
          {"nothing", "{}"},
          {"opt.lr", "0.5"},
          {"opt.other", "1"}}));
}

TEST(ValueNesting, RefusesLeavesUnderLeaves) {
  Catalog content;
  content.values = {{"a", Path{"a"}, Value::of_int(3)}, {"a.b", Path{"a", "b"}, Value::of_int(3)}};
  EXPECT_EQ(values_in_one_piece(content).error().code, Code::layout);
}

}  // namespace
}  // namespace ebb::formats
