// What of values, groups and steps is noticed when it does not arrive.
#include "ebb/formats/conversion/content_check.h"

#include <gtest/gtest.h>

namespace ebb::libswap {
namespace {

using Lines = std::vector<std::string>;

Catalog sample() {
  Catalog catalog;
  catalog.format = "here";
  catalog.step = 7;
  catalog.values.push_back({"seed", {"seed"}, Value::of_int(3)});
  catalog.values.push_back({"lr", {"lr"}, Value::of_real(0.5), true});
  catalog.groups.push_back(
      {"muon", {{"lr", Value::of_real(2)}, {"nesterov", Value::of_bool(true)}}, {"w", "v"}});
  catalog.param_steps = {{"w", 7}};
  for (const char* name : {"w", "v"}) catalog.tensors.emplace_back().name = name;
  return catalog;
}

TEST(ContentCheck, FindsNothingWhereEverythingArrived) {
  Catalog written = sample();
  written.values.pop_back();  // what repeats the groups is compared there
  written.values.push_back({"more", {"more"}, {}});
  EXPECT_EQ(formats::lost_content(sample(), EmitPlan{}, written), Lines{});
}

TEST(ContentCheck, NamesEverythingThatIsMissing) {
  Catalog written;
  written.format = "here";
  EXPECT_EQ(formats::lost_content(sample(), EmitPlan{}, written),
            (Lines{"step 7 is missing", "value 'seed' is missing", "parameter group 0 is missing",
                   "the steps of 'w' is missing"}));
}

TEST(ContentCheck, NamesEverythingThatIsDifferent) {
  Catalog written = sample();
  written.step = 8;
  written.values[0].value = Value::of_int(4);
  written.groups[0].optimizer = "sgd";
  written.groups[0].settings[0].second = Value::of_real(3);
  written.groups[0].settings.pop_back();
  written.groups[0].params.pop_back();
  written.param_steps["w"] = 6;
  EXPECT_EQ(formats::lost_content(sample(), EmitPlan{}, written),
            (Lines{"step is 8, not 7", "value 'seed' is 4, not 3",
                   "parameter group 0: optimizer is sgd, not muon",
                   "parameter group 0: setting 'lr' is 3.0, not 2.0",
                   "parameter group 0: setting 'nesterov' is missing",
                   "parameter group 0: parameter 'v' is missing", "the steps of 'w' is 6, not 7"}));
}

TEST(ContentCheck, LeavesOutWhatThePlanDropsOrRewrites) {
  Catalog written;
  written.format = "here";
  EmitPlan plan;
  plan.dropped = {"value 'step'", "parameter group 0 with 2 settings",
                  "the steps of each parameter: counted per group"};
  plan.rewritten = {"seed"};
  EXPECT_EQ(formats::lost_content(sample(), plan, written), Lines{});
}

TEST(ContentCheck, TellsKindsApartWithinOneFormatOnly) {
  Catalog written = sample();
  written.groups[0].settings[0].second = Value::of_int(2);
  EXPECT_EQ(formats::lost_content(sample(), EmitPlan{}, written),
            Lines{"parameter group 0: setting 'lr' is 2, not 2.0"});
  written.format = "elsewhere";
  EXPECT_EQ(formats::lost_content(sample(), EmitPlan{}, written), Lines{});
}

TEST(ContentCheck, NamesGroupsInAnotherOrder) {
  Catalog content = sample();
  content.groups.push_back({"adamw", {}, {"b"}});
  content.groups.push_back({"adamw", {}, {"left out"}});
  content.tensors.emplace_back().name = "b";
  Catalog written = content;
  EXPECT_EQ(lost_content(content, EmitPlan{}, written), Lines{});
  std::swap(written.groups[0], written.groups[1]);
  EXPECT_EQ(lost_content(content, EmitPlan{}, written),
            Lines{"parameter group 1 comes before group 0"});
  EmitPlan plan;
  plan.group_order = {1, 0, 2};
  EXPECT_EQ(lost_content(content, plan, written), Lines{}) << "on purpose";
  EXPECT_EQ(lost_content(content, plan, content), Lines{"parameter group 0 comes before group 1"});
  plan.groups_have_order = false;
  EXPECT_EQ(lost_content(content, plan, content), Lines{}) << "found by their settings";
}

TEST(ContentCheck, PairsGroupsByTheirParameters) {
  Catalog written = sample();
  written.groups.insert(written.groups.begin(), {"adamw", {}, {"bias"}});
  EXPECT_EQ(formats::lost_content(sample(), EmitPlan{}, written), Lines{});
}

}  // namespace
}  // namespace ebb::libswap
