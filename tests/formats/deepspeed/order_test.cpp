// DeepSpeed loads groups, and parameters inside flat buffers, by position alone: what lies where is
// what this looks at. The engine itself is asked by tests/judges/deepspeed.sh.
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "ebb/formats/deepspeed/deepspeed.h"
#include "ebb/formats/torch/archive.h"
#include "tests/formats/deepspeed/emitted.h"

namespace ebb {

namespace {

using test_support::emit;
using test_support::Emitted;
using test_support::MadeContent;
using test_support::MemoryTree;
using Names = std::vector<std::string>;

std::vector<Names> groups_of(const Checkpoint& checkpoint) {
  std::vector<Names> out;
  for (const GroupEntry& group : checkpoint.catalog().groups) out.push_back(group.params);
  return out;
}

// The names in param_shapes: what lies in the flat buffers, in their order.
std::vector<Names> buffers_of(const MemoryTree& tree, const std::string& file) {
  const auto source = tree.open("global_step7/" + file);
  EBB_CHECK(source.has_value());
  const auto archive = formats::TorchArchive::open(*source, 0, (*source)->size());
  EBB_CHECK(archive.has_value());
  const formats::PickleGraph& graph = archive->graph();
  std::vector<Names> out;
  for (const auto buffer : graph.items(graph.find(graph.root(), "param_shapes"))) {
    Names& names = out.emplace_back();
    const auto entries = graph.items(buffer);
    for (std::size_t i = 0; i < entries.size(); i += 2) names.emplace_back(graph.text(entries[i]));
  }
  return out;
}
constexpr const char* kModel12 = "mp_rank_00_model_states.pt";
constexpr const char* kModel3 = "zero_pp_rank_0_mp_rank_00_model_states.pt";

Value run_of(std::int64_t stage, std::vector<std::pair<std::string, Value>> zero = {}) {
  zero.emplace_back("stage", Value::of_int(stage));
  return Value::of_dict({{"optimizer", Value::of_dict({{"type", Value::of_string("Muon")}})},
                         {"bf16", Value::of_dict({{"enabled", Value::of_bool(true)}})},
                         {"zero_optimization", Value::of_dict(std::move(zero))}});
}

// What a job with two groups makes: each split in place, every half of 12 elements.
MadeContent two_user_groups(const std::string& format) {
  MadeContent content(format, DType::bf16);
  content.add_group("muon", {{"a.small", {2, 3}}, {"a.large", {3, 2}}}, 0.01);
  content.add_group("adamw", {{"a.bias", {12}}}, 0.01);
  content.add_group("muon", {{"b.w", {4, 3}}}, 0.02);
  content.add_group("adamw", {{"b.bias", {12}}}, 0.02);
  return content;
}
void name_groups(MadeContent& content) {
  std::size_t number = 0;
  for (GroupEntry& group : content.edit().groups) {
    const std::string name = "group" + std::to_string(number++ / 2) +
                             (group.optimizer == "muon" ? "-muon-params" : "-adam-params");
    group.settings.emplace_back("name", Value::of_string(name));
    group.settings.emplace_back("use_muon", Value::of_bool(group.optimizer == "muon"));
  }
}

const std::vector<Names> kAsTheEngineSorts = {
    {"a.large", "a.small"}, {"a.bias"}, {"b.w"}, {"b.bias"}};

TEST(DeepSpeedOrder, GroupsStayAsTheEngineMadeThemWhateverTheyCameThrough) {
  for (const std::string format : {"dcp", "hdf5", "ebb", "deepspeed"})
    for (const bool configured : {true, false})
      for (const Policy policy : {Policy::zero12, Policy::zero3, Policy::replicated}) {
        MadeContent content = two_user_groups(format);
        if (configured) content.add_value("ds_config", run_of(2));
        if (!configured) name_groups(content);
        const Emitted emitted = emit(content, policy, 2);
        EXPECT_EQ(groups_of(*emitted.checkpoint), kAsTheEngineSorts) << format;
        EXPECT_TRUE(emitted.plan.group_order.empty()) << format;
        if (policy == Policy::replicated) continue;
        const char* model = policy == Policy::zero3 ? kModel3 : kModel12;
        EXPECT_EQ(buffers_of(*emitted.tree, model), kAsTheEngineSorts) << format;
      }
}

// Megatron keeps the groups of each optimizer together.
TEST(DeepSpeedOrder, PartedHalvesAreBroughtTogetherByTheirNames) {
  MadeContent content = two_user_groups("megatron");
  name_groups(content);
  auto& groups = content.edit().groups;
  std::ranges::stable_partition(groups, [](const auto& g) { return g.optimizer == "muon"; });
  const Emitted emitted = emit(content, Policy::zero12, 2);
  EXPECT_EQ(groups_of(*emitted.checkpoint), kAsTheEngineSorts);
  EXPECT_EQ(emitted.plan.group_order, (std::vector<std::uint32_t>{0, 2, 1, 3}));
  // A name of the job's own: its place is the one that no number takes.
  for (GroupEntry& group : groups)
    for (auto& [key, value] : group.settings)
      if (key == "name" && value.text.starts_with("group0")) value.text.replace(0, 6, "mine");
  EXPECT_EQ(groups_of(*emit(content, Policy::zero12, 2).checkpoint), kAsTheEngineSorts);
}

TEST(DeepSpeedOrder, GroupsFromElsewhereAreGuessedAndThatIsSaid) {
  MadeContent content("dcp", DType::bf16);
  content.add_group("adamw", {{"bias", {12}}}, 0.01);
  content.add_group("muon", {{"w", {4, 3}}}, 0.02);
  const Emitted one = emit(content, Policy::zero3, 2);
  EXPECT_EQ(groups_of(*one.checkpoint), (std::vector<Names>{{"w"}, {"bias"}}));
  EXPECT_EQ(one.plan.group_order, (std::vector<std::uint32_t>{1, 0}));
  EXPECT_EQ(one.plan.notes,
            Names{"2 parameter groups, Muon's first: DeepSpeed loads groups by position, so the "
                  "job must make them in this order"});
  content.add_group("muon", {{"v", {4, 3}}}, 0.03);
  const Emitted several = emit(content, Policy::zero3, 2);
  EXPECT_EQ(groups_of(*several.checkpoint), (std::vector<Names>{{"bias"}, {"w"}, {"v"}}));
  EXPECT_TRUE(several.plan.group_order.empty());
  EXPECT_NE(several.plan.notes.at(0).find("in the order of the source"), std::string::npos);
}

TEST(DeepSpeedOrder, GroupsMadeOfStatesAreNoneOfTheContents) {
  MadeContent content("safetensors", DType::bf16);
  content.add_group("adamw", {{"bias", {12}}}, 0.01);
  content.add_group("muon", {{"w", {4, 3}}}, 0.02);
  content.edit().groups.clear();
  const Emitted emitted = emit(content, Policy::zero3, 2);
  EXPECT_EQ(groups_of(*emitted.checkpoint), (std::vector<Names>{{"w"}, {"bias"}}));
  EXPECT_TRUE(emitted.plan.group_order.empty());
}

// Made under zero.Init, where the engine cannot see shapes, a Muon group is not sorted.
TEST(DeepSpeedOrder, WhatAJobUnderZeroInitWouldMistakeIsSaid) {
  MadeContent content = two_user_groups("deepspeed");
  content.add_value("ds_config", run_of(2));
  const Emitted third = emit(content, Policy::zero3, 2);
  ASSERT_EQ(third.plan.notes.size(), 1u);
  EXPECT_NE(third.plan.notes[0].find("zero.Init"), std::string::npos);
}

TEST(DeepSpeedOrder, StageThreeKeepsItsOrderThroughOtherFormats) {
  for (const std::string format : {"dcp", "deepspeed"}) {
    MadeContent content = two_user_groups(format);
    content.add_value("ds_config", run_of(3));
    const std::vector<Names> stored = groups_of(content);
    const Emitted third = emit(content, Policy::zero3, 2);
    EXPECT_EQ(buffers_of(*third.tree, kModel3), stored) << format;
    EXPECT_EQ(third.plan.notes, Names{});
    EXPECT_EQ(buffers_of(*emit(content, Policy::zero12, 2).tree, kModel12), kAsTheEngineSorts);
  }
}

MadeContent seven_and_five(const std::string& format, const Value& config) {
  MadeContent content(format, DType::bf16);
  std::vector<MadeContent::Param> matrices;
  std::vector<MadeContent::Param> vectors;
  for (const char i : {'0', '1', '2', '3', '4', '5', '6'})
    matrices.push_back({std::string("w") + i, {3, 2}});
  for (const char i : {'0', '1', '2', '3', '4'}) vectors.push_back({std::string("v") + i, {6}});
  content.add_group("muon", matrices, 0.02);
  content.add_group("adamw", vectors, 0.01);
  content.add_value("ds_config", config);
  name_groups(content);
  return content;
}

TEST(DeepSpeedOrder, ParametersAreDealtToTheRanksOnceWhateverTheyCameThrough) {
  const Value config = run_of(2, {{"round_robin_gradients", Value::of_bool(true)}});
  const std::vector<Names> dealt = {{"w0", "w3", "w6", "w1", "w4", "w2", "w5"},
                                    {"v0", "v3", "v1", "v4", "v2"}};
  for (const std::string format : {"dcp", "deepspeed"}) {
    const MadeContent content = seven_and_five(format, config);
    const Emitted three = emit(content, Policy::zero12, 3);
    EXPECT_EQ(buffers_of(*three.tree, kModel12), dealt) << format;
    EXPECT_EQ(groups_of(*three.checkpoint), groups_of(content)) << "as the model has them";
    EXPECT_EQ(test_support::content_differences(content, *three.checkpoint), "");
    const Emitted two = emit(*three.checkpoint, Policy::zero12, 2);
    EXPECT_EQ(buffers_of(*two.tree, kModel12)[1], (Names{"v0", "v2", "v4", "v1", "v3"}));
    EXPECT_EQ(groups_of(*emit(*two.checkpoint, Policy::zero3, 2).checkpoint), groups_of(content));
    EXPECT_EQ(groups_of(*emit(content, Policy::replicated, 3).checkpoint), groups_of(content));
  }
}

TEST(DeepSpeedOrder, BF16OptimizerAndStageThreeDealNothing) {
  Value config = run_of(1, {{"round_robin_gradients", Value::of_bool(true)}});
  config.add("data_types", Value::of_dict({{"grad_accum_dtype", Value::of_string("fp32")}}));
  const MadeContent content = seven_and_five("dcp", config);
  EXPECT_EQ(buffers_of(*emit(content, Policy::zero12, 3).tree, kModel12), groups_of(content));
  EXPECT_EQ(buffers_of(*emit(content, Policy::zero3, 3).tree, kModel3), groups_of(content));
}

bool says(const EmitPlan& plan, std::string_view what) {
  return std::ranges::any_of(
      plan.notes, [&](const std::string& note) { return note.find(what) != std::string::npos; });
}

TEST(DeepSpeedUniversal, SaysWhatNoDeepSpeedCanResumeWhenItIsWritten) {
  const Value dealing = run_of(2, {{"round_robin_gradients", Value::of_bool(true)}});
  const Emitted dealt = emit(seven_and_five("dcp", dealing), Policy::replicated, 2);
  EXPECT_TRUE(says(dealt.plan, "round_robin_gradients is on"));
  const auto answer = [](const Checkpoint& checkpoint, std::uint32_t world) {
    return formats::resume_answer(formats::deepspeed_universal_resume(),
                                  {checkpoint.catalog(), world});
  };
  EXPECT_FALSE(answer(*dealt.checkpoint, 1).resumable);
  EXPECT_EQ(answer(*dealt.checkpoint, 1).partition, "zero12");
  const Emitted third = emit(seven_and_five("dcp", run_of(3)), Policy::replicated, 2);
  EXPECT_TRUE(says(third.plan, "whose loader of universal checkpoints knows Adam's state only"));
  MadeContent adam("dcp", DType::bf16);
  adam.add_group("adamw", {{"w", {3, 2}}}, 0.01);
  adam.add_value("ds_config", run_of(3));
  name_groups(adam);
  const Emitted fine = emit(adam, Policy::replicated, 2);
  EXPECT_EQ(fine.plan.notes, Names{});
  EXPECT_TRUE(answer(*fine.checkpoint, 5).resumable);
}

// Its loader of stage 3 sets what the first group has in all of them.
TEST(DeepSpeedUniversal, KeepsSettingsOfItsGroupsButInStageThree) {
  for (const auto& [stage, second, resumes] :
       {std::tuple(3, 0.02, false), std::tuple(3, 0.01, true), std::tuple(2, 0.02, true)}) {
    MadeContent adam("dcp", DType::bf16);
    adam.add_group("adamw", {{"w", {3, 2}}}, 0.01);
    adam.add_group("adamw", {{"v", {3, 2}}}, second);
    adam.add_value("ds_config", run_of(stage));
    name_groups(adam);
    const auto content = emit(adam, Policy::replicated, 2).checkpoint;
    const auto answer =
        formats::resume_answer(formats::deepspeed_universal_resume(), {content->catalog(), 2});
    EXPECT_EQ(answer.resumable, resumes) << stage << " " << second << ": " << answer.why;
    EXPECT_EQ(answer.partition, resumes ? "" : "zero3");
  }
}

TEST(DeepSpeedPolicy, IsTheSourcesOwnStage) {
  const auto policy = [](std::int64_t stage) {
    MadeContent content("dcp", DType::bf16);
    if (stage > 0) content.add_value("ds_config", run_of(stage));
    return formats::deepspeed_policy(content.catalog());
  };
  EXPECT_EQ(policy(1), Policy::zero12);
  EXPECT_EQ(policy(2), Policy::zero12);
  EXPECT_EQ(policy(3), Policy::zero3);
  EXPECT_EQ(policy(0), Policy::zero3) << "no DeepSpeed wrote it";
}

// Content that counts steps for the whole run only: an optimizer that counts none gets none.
TEST(DeepSpeedEmit, GivesNoStepsToWhatKeepsMomentumAlone) {
  MadeContent content("dcp", DType::bf16);
  content.add_group("muon", {{"w", {3, 2}}}, 0.1);
  content.edit().groups[0].optimizer = "sgd";
  const Emitted emitted = emit(content, Policy::zero12, 2);
  EXPECT_EQ(emitted.checkpoint->catalog().step, 7);
  EXPECT_TRUE(emitted.checkpoint->catalog().param_steps.empty());
}

// An optimizer that its engine lets count nothing counts nothing in the result.
TEST(DeepSpeedEmit, GivesNoStepsToWhatDeepSpeedCountedNone) {
  for (const char* format : {"deepspeed", "dcp"}) {
    MadeContent content(format, DType::bf16);
    content.add_group("adamw", {{"w", {3, 2}}}, 0.1);
    content.edit().param_steps.clear();
    std::erase_if(content.edit().tensors, [](const auto& t) { return t.state == "step"; });
    const Emitted emitted = emit(content, Policy::zero12, 2);
    EXPECT_EQ(emitted.checkpoint->catalog().param_steps.empty(), format == std::string("deepspeed"))
        << "of others the run's steps are the parameter's";
  }
}

TEST(DeepSpeedEmit, SaysWhichTensorsGetAnotherDtype) {
  MadeContent content("dcp", DType::bf16);
  content.add_group("muon", {{"a", {3, 2}}, {"b", {3, 2}}}, 0.1);
  EXPECT_EQ(emit(content, Policy::zero3, 2).plan.notes, Names{});
  // The masters are gone: they are made of the 16-bit weights, which stage 3 does not store.
  std::erase_if(content.edit().tensors, [](const auto& t) { return t.state == "master"; });
  EXPECT_EQ(emit(content, Policy::zero3, 2).plan.notes,
            Names{"2 tensors (param) of BF16 stored as F32, exact"});
  EXPECT_EQ(emit(content, Policy::zero12, 2).plan.notes, Names{}) << "stage 2 has both";
}

}  // namespace

}  // namespace ebb
