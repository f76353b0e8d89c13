// Which matrices a parameter is to its spec, and their scales.
#include "ebb/libmuon/spec/blocks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace ebb::libmuon {
namespace {

// "first: rows x cols" of each, with what lies between its rows.
std::string described(const MuonSpec& spec, const Shape& shape) {
  std::string text;
  for (const Block& block : blocks_of(spec, shape)) {
    text +=
        compose("{}{}: {} x {}", text.empty() ? "" : ", ", block.first, block.rows(), block.cols);
    if (block.runs > 1) text += compose(" by {} of {}", block.run, block.stride);
  }
  return text;
}

MuonSpec split_by(Split split) {
  MuonSpec spec = MuonSpec::keller();
  spec.split = std::move(split);
  return spec;
}

TEST(Blocks, MoreThanTwoDimensionsAreAStackOrOneMatrixByRule) {
  MuonSpec spec = MuonSpec::keller();
  EXPECT_EQ(described(spec, {6, 4}), "0: 6 x 4");
  EXPECT_EQ(described(spec, {2, 3, 4}), "0: 3 x 4, 12: 3 x 4");
  EXPECT_EQ(described(spec, {2, 2, 3, 4}), "0: 3 x 4, 12: 3 x 4, 24: 3 x 4, 36: 3 x 4");
  spec.dims = Dims::flatten;
  EXPECT_EQ(described(spec, {2, 3, 4}), "0: 2 x 12");
  spec.dims = Dims::flatten_4;
  EXPECT_EQ(described(spec, {2, 3, 4}), "0: 3 x 4, 12: 3 x 4");
  EXPECT_EQ(described(spec, {2, 3, 4, 5}), "0: 2 x 60");
}

TEST(Blocks, RowsAreCutIntoHeadsPartsOrPartsOfGroups) {
  EXPECT_EQ(described(split_by({Split::Kind::heads, {3}}), {6, 4}),
            "0: 2 x 4, 8: 2 x 4, 16: 2 x 4");
  EXPECT_EQ(described(split_by({Split::Kind::rows, {3, 2, 1}}), {6, 4}),
            "0: 3 x 4, 12: 2 x 4, 20: 1 x 4");
  EXPECT_EQ(described(split_by({Split::Kind::groups, {2, 1}}), {6, 4}),
            "0: 4 x 4 by 2 of 3, 8: 2 x 4 by 1 of 3");
  EXPECT_EQ(described(split_by({Split::Kind::heads, {2}}), {2, 4, 3}),
            "0: 2 x 3, 6: 2 x 3, 12: 2 x 3, 18: 2 x 3");
  EXPECT_FALSE(check_split(split_by({Split::Kind::heads, {4}}), {6, 4}));
  EXPECT_FALSE(check_split(split_by({Split::Kind::rows, {3, 2}}), {6, 4}));
  EXPECT_TRUE(check_split(split_by({Split::Kind::groups, {2, 1}}), {6, 4}));
}

// "first+count x scale squared" of each.
std::string scales(const MuonSpec& spec, const Shape& shape, FlatRange range) {
  std::string text;
  for (const Scaled& part : scales_of(spec, shape, range))
    text += compose("{}{}+{} x {}", text.empty() ? "" : ", ", part.first, part.count,
                    std::lround(100 * part.scale * part.scale));
  return text;
}

TEST(Blocks, ARangeIsCutWhereTheScaleOfItsMatrixChanges) {
  MuonSpec spec = split_by({Split::Kind::rows, {8, 2}});
  EXPECT_EQ(scales(spec, {10, 4}, {0, 40}), "0+32 x 200, 32+8 x 100");
  EXPECT_EQ(scales(spec, {10, 4}, {30, 5}), "30+2 x 200, 32+3 x 100");
  EXPECT_EQ(scales(spec, {3, 10, 4}, {30, 45}), "30+2 x 200, 32+8 x 100, 40+32 x 200, 72+3 x 100");
  // Both groups' 8 rows are one matrix of 16.
  spec.split.kind = Split::Kind::groups;
  EXPECT_EQ(scales(spec, {20, 4}, {30, 15}), "30+2 x 400, 32+8 x 100, 40+5 x 400");
  spec.split = {};
  EXPECT_EQ(scales(spec, {3, 8, 4}, {5, 70}), "5+70 x 200");
}

TEST(Blocks, TheScaleFollowsItsRuleTheOrientationAndAFactor) {
  MuonSpec spec = MuonSpec::keller();
  const auto scale = [&](const Shape& shape) {
    return scales_of(spec, shape, {0, 1}).front().scale;
  };
  EXPECT_EQ(scale({16, 4}), 2);
  EXPECT_EQ(scale({4, 16}), 1);
  spec.orientation = Orientation::cols_out;
  EXPECT_EQ(scale({4, 16}), 2);
  spec.orientation = Orientation::rows_out;
  spec.scale = ScaleRule::match_rms_adamw;
  EXPECT_DOUBLE_EQ(scale({4, 16}), 0.8);
  spec.scale = ScaleRule::sqrt_max;
  spec.scale_factor = 0.5;
  EXPECT_EQ(scale({4, 16}), 2);
  spec.scale = ScaleRule::sqrt_rows_over_cols;
  EXPECT_EQ(scale({4, 16}), 0.25);
  spec.scale = ScaleRule::one;
  EXPECT_EQ(scale({4, 16}), 0.5);
  // As Keller Jordan's code has it for filters: of the last two dimensions.
  spec = MuonSpec::keller();
  spec.dims = Dims::flatten;
  EXPECT_DOUBLE_EQ(scale({64, 2, 4, 2}), 2);
  spec.scale_of = ScaleOf::last_two;
  EXPECT_DOUBLE_EQ(scale({64, 2, 4, 2}), std::sqrt(2.0));
}

}  // namespace
}  // namespace ebb::libmuon
