// What a conversion may change on request, and what it refuses to.
#include "ebb/formats/conversion/edits.h"

#include <gtest/gtest.h>

#include "ebb/formats/conversion/convert.h"
#include "ebb/formats/conversion/glob.h"
#include "ebb/formats/registry.h"
#include "tests/libswap/transfer/memory_checkpoint.h"
#include "tests/support/emit_in_memory.h"

namespace ebb::libswap {
namespace {

using testing::MemoryCheckpoint;
using testing::Random;
using Lines = std::vector<std::string>;
using Names = std::map<std::string, std::string>;

formats::RenameRules renames(const std::string& text) {
  auto rules = formats::RenameRules::parse(Lines{text});
  EXPECT_TRUE(rules) << rules.error().message;
  return std::move(*rules);
}

std::string complaint(const Result<Names>& result) {
  return result ? "none" : result.error().message;
}

TEST(Glob, CapturesWhatEachStarStandsFor) {
  EXPECT_EQ(*formats::glob_captures("a.*.b.*", "a.x.b.y.z"),
            (std::vector<std::string_view>{"x", "y.z"}));
  EXPECT_EQ(*formats::glob_captures("*ab", "abab"), (std::vector<std::string_view>{"ab"}));
  EXPECT_TRUE(formats::glob_captures("a?c", "abc"));
  EXPECT_FALSE(formats::glob_captures("a*", "ba"));
  EXPECT_FALSE(formats::glob_captures("ab*ba", "aba"));
  EXPECT_FALSE(formats::glob_captures("a", "ab"));
}

// --include, --exclude and -k ask the same of names, --rename and --dtype of names and states.
TEST(Glob, MatchesWholeNames) {
  EXPECT_TRUE(formats::glob_match("layers.*.w", "layers.0.attn.w"));
  EXPECT_TRUE(formats::glob_match("*", ""));
  EXPECT_TRUE(formats::glob_match("**a?", "bab"));
  EXPECT_FALSE(formats::glob_match("layers.?.w", "layers.10.w"));
  EXPECT_FALSE(formats::glob_match("w", "w2"));
  EXPECT_FALSE(formats::glob_match("?", ""));
}

TEST(Rename, TakesStarsInOrderOrByNumberAndTheFirstRuleThatFits) {
  const formats::RenameRules rules =
      renames("# a comment\nmodule.head=out, module.*=*\n a.*.b.* = $2.of.$1 ");
  const auto names = rules.apply({"module.head", "module.w", "a.1.b.2", "other"});
  ASSERT_TRUE(names) << names.error().message;
  EXPECT_EQ(*names, (Names{{"module.head", "out"}, {"module.w", "w"}, {"a.1.b.2", "2.of.1"}}));
}

TEST(Rename, NamesTheRuleOrTheNamesThatAreWrong) {
  EXPECT_EQ(complaint(renames("x.*=y.*").apply({"w"})),
            "rename rule 'x.*=y.*' fits none of the 1 names");
  EXPECT_EQ(complaint(renames("*=a.*,w=b").apply({"w"})),
            "rename rule 'w=b' fits only names that a rule before it takes");
  EXPECT_EQ(complaint(renames("?=one").apply({"v", "w"})),
            "'v' and 'w' would both be called 'one'");
  EXPECT_EQ(complaint(renames("v=w").apply({"v", "w"})), "'v' and 'w' would both be called 'w'");
  EXPECT_FALSE(formats::RenameRules::parse(Lines{"module"}));
  EXPECT_FALSE(formats::RenameRules::parse(Lines{"a=$1"}));
  EXPECT_FALSE(formats::RenameRules::parse(Lines{"=a"}));
}

class Revising : public ::testing::Test {
 protected:
  Revising() {
    Catalog& catalog = source_.catalog();
    catalog.format = "elsewhere";
    add("w", "param", DType::f32, 1.0F);
    add("w", "momentum_buffer", DType::f32, 3.0F);
    add("w", "step", DType::f32, 7.0F);
    catalog.groups.push_back({"muon", {{"momentum", Value::of_real(0.75)}}, {"w"}});
    catalog.values.push_back({"tied", {"tied"}, Value::of_list({Value::of_string("w")})});
    catalog.values.push_back({"note", {"note"}, Value::of_string("w")});
  }
  void add(std::string name, std::string state, DType dtype, float value) {
    const std::uint32_t number = source_.add(std::move(name), dtype, {2}, random_);
    source_.catalog().tensors[number].state = std::move(state);
    source_.add_chunk(number, formats::whole({2}), 0);
    std::memcpy(source_.bytes(number).data(), &value, sizeof(value));
    std::memcpy(source_.bytes(number).data() + 4, &value, sizeof(value));
  }
  Result<formats::Conversion> convert(const formats::Edits& edits) {
    return formats::plan_conversion(source_, {.from = formats::format_of(source_.catalog()),
                                              .to = *formats::format_named("dcp"),
                                              .edits = &edits});
  }
  static formats::Edits momentum(formats::MomentumRule rule) {
    formats::Edits edits;
    edits.momentum = rule;
    return edits;
  }
  static float first(const formats::Conversion& conversion, std::size_t tensor) {
    const auto bytes = test_support::elements_of(*conversion.content,
                                                 conversion.content->catalog().tensors[tensor]);
    EXPECT_TRUE(bytes);
    return formats::load_le<float>(*bytes);
  }
  Random random_{3};
  MemoryCheckpoint source_;
};

TEST_F(Revising, RenamesTensorsGroupsAndWhatSpeaksOfParameters) {
  source_.catalog().param_steps = {{"w", 7}};
  formats::Edits edits;
  edits.rename = renames("*=model.*");
  Catalog content = source_.catalog();
  std::vector<formats::MadeOf> made_of{{0}, {1}, {2}};
  const auto changes = formats::apply_edits(edits, content, made_of);
  ASSERT_TRUE(changes) << changes.error().message;
  EXPECT_EQ(*changes, Lines{"renames 1 of 1 names"});
  for (const auto& tensor : content.tensors) EXPECT_EQ(tensor.name, "model.w");
  EXPECT_EQ(content.groups[0].params, Lines{"model.w"});
  EXPECT_EQ(content.param_steps, (std::map<std::string, std::int64_t>{{"model.w", 7}}));
  EXPECT_EQ(to_json(content.values[0].value), "[\"model.w\"]");
  EXPECT_EQ(to_json(content.values[1].value), "\"w\"");
}

TEST_F(Revising, CastsWhatARuleFitsButNoStepCounter) {
  formats::Edits edits;
  auto rules = formats::DTypeRules::parse(Lines{"bf16,momentum*=f64"});
  ASSERT_TRUE(rules);
  edits.dtypes = std::move(*rules);
  const auto made = convert(edits);
  ASSERT_TRUE(made) << made.error().message;
  const auto& tensors = made->content->catalog().tensors;
  EXPECT_EQ(tensors[0].dtype, DType::bf16);
  EXPECT_EQ(tensors[1].dtype, DType::f64);
  EXPECT_EQ(tensors[2].dtype, DType::f32);
  EXPECT_EQ(made->changes,
            (Lines{"casts 1 tensors (momentum_buffer) from F32 to F64, exact",
                   "casts 1 tensors (param) from F32 to BF16, rounded to nearest: lossy"}));
  auto nothing = formats::DTypeRules::parse(Lines{"exp_avg*=f32"});
  ASSERT_TRUE(nothing);
  edits.dtypes = std::move(*nothing);
  EXPECT_EQ(convert(edits).error().message, "dtype rule 'exp_avg*=f32' fits no floating tensor");
  EXPECT_FALSE(formats::DTypeRules::parse(Lines{"param=i8"}));
}

TEST_F(Revising, ScalesTheMomentumByItsGroupsBetaAndNotesTheForm) {
  const auto made = convert(momentum({formats::MomentumForm::sum}));
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_EQ(first(*made, 1), 12.0F);  // 3 / (1 - 0.75)
  EXPECT_EQ(first(*made, 0), 1.0F);
  EXPECT_EQ(made->changes, Lines{"momentum of 1 tensors becomes sum: times 4, exact"});
  EXPECT_EQ(to_json(made->content->catalog().groups[0].settings.back().second), "\"sum\"");
  source_.catalog().groups = made->content->catalog().groups;
  const auto back = convert(momentum({formats::MomentumForm::ema}));
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(first(*back, 1), 0.75F);  // it said it was a sum
}

// Its optimizer keeps a momentum_buffer as the others do, but sums.
TEST_F(Revising, TakesMoonlightsMomentumForASum) {
  source_.catalog().groups[0].settings.emplace_back("adamw_betas", Value::of_real(0.9));
  const auto made = convert(momentum({formats::MomentumForm::ema}));
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_EQ(first(*made, 1), 0.75F);  // 3 * (1 - 0.75)
}

TEST_F(Revising, RefusesAMomentumThatNobodyCanTell) {
  Catalog& catalog = source_.catalog();
  catalog.groups[0].optimizer = "lion";
  EXPECT_NE(
      convert(momentum({formats::MomentumForm::sum})).error().message.find("nothing tells whether"),
      std::string::npos);
  EXPECT_TRUE(convert(momentum({formats::MomentumForm::sum, formats::MomentumForm::ema})));
  catalog.groups[0].settings.clear();
  EXPECT_NE(convert(momentum({formats::MomentumForm::sum, formats::MomentumForm::ema}))
                .error()
                .message.find("holds no beta"),
            std::string::npos);
  catalog.groups.clear();
  EXPECT_NE(
      convert(momentum({formats::MomentumForm::sum})).error().message.find("in no parameter group"),
      std::string::npos);
}

}  // namespace
}  // namespace ebb::libswap
