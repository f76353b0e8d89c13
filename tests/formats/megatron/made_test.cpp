// Content that no fixture has, written as Megatron and read again.
#include <gtest/gtest.h>

#include <algorithm>

#include "ebb/formats/conversion/convert.h"
#include "ebb/formats/registry.h"
#include "tests/formats/megatron/written.h"
#include "tests/libswap/transfer/memory_checkpoint.h"

namespace ebb {

namespace {

using megatron_test::content_of;
using megatron_test::find;
using megatron_test::values_of;
using megatron_test::written_as;

class MegatronMade : public testing::Test {
 protected:
  std::uint32_t add(std::string name, std::string state, DType dtype, Shape shape) {
    const std::uint32_t number = source_.add(std::move(name), dtype, shape, random_);
    source_.catalog().tensors[number].state = std::move(state);
    source_.add_chunk(number, formats::whole(shape), 0);
    return number;
  }
  void group(std::string optimizer, std::vector<std::string> params) {
    source_.catalog().groups.push_back(
        {std::move(optimizer), {{"lr", Value::of_real(0.5)}}, std::move(params)});
  }
  MegatronMade() { source_.catalog().format = "elsewhere"; }

  libswap::testing::Random random_{7};
  libswap::testing::MemoryCheckpoint source_;
};

TEST_F(MegatronMade, AScalerOfMegatronsGoesAndComesBackWithTheOptimizers) {
  for (const char* name : {"v", "w"}) {
    add(name, "param", DType::f16, {4});
    add(name, "exp_avg", DType::f32, {4});
    group(name, {name});
  }
  const Value scaler = Value::of_dict({{"scale", Value::of_real(512)}});
  source_.catalog().values.push_back({"loss_scaler", {}, scaler});
  for (const char* format : {"dcp", "ebb"}) {
    const auto there = written_as(source_, "megatron");
    ASSERT_TRUE(there.has_value()) << there.error().message;
    const Value* all = formats::value_at(there->checkpoint->catalog(), {"optimizer"});
    ASSERT_NE(all, nullptr);
    for (const auto& [number, part] : all->entries)
      EXPECT_EQ(to_json(*part.find("grad_scaler")), to_json(scaler));
    const auto& values = there->checkpoint->catalog().values;
    EXPECT_EQ(std::ranges::count(values, "loss_scaler", &ValueEntry::key), 1);
    const auto away = written_as(*there->checkpoint, format, 2);
    ASSERT_TRUE(away.has_value()) << away.error().message;
    const auto same = written_as(*there->checkpoint, "megatron");
    ASSERT_TRUE(same.has_value()) << same.error().message;
    EXPECT_EQ(values_of(same->checkpoint->catalog()), values_of(there->checkpoint->catalog()));
  }
}

TEST_F(MegatronMade, HalvesOfSwigluHaveOneEntryOfSettingsUnderTheNameOfTheWhole) {
  for (const char* half : {"fc1.weight_w", "fc1.weight_v"}) {
    add(half, "param", DType::f32, {3, 2});
    add(half, "momentum_buffer", DType::f32, {3, 2});
  }
  add("norm", "param", DType::f32, {2});
  add("norm", "exp_avg", DType::f32, {2});
  group("muon", {"fc1.weight_w", "fc1.weight_v"});
  group("adamw", {"norm"});
  const auto out = written_as(source_, "megatron-fsdp", 2);
  ASSERT_TRUE(out.has_value()) << out.error().message;
  const Catalog& catalog = out->checkpoint->catalog();
  const auto values = values_of(catalog);
  EXPECT_TRUE(values.contains("optimizer.0.param_to_group_meta.fc1.weight.lr"));
  EXPECT_FALSE(values.contains("optimizer.0.param_to_group_meta.fc1.weight_w.lr"));
  ASSERT_EQ(catalog.groups.size(), 2u);
  EXPECT_EQ(catalog.groups[0].params, (std::vector<std::string>{"fc1.weight_w", "fc1.weight_v"}));
  EXPECT_EQ(content_of(*out->checkpoint), content_of(source_));
}

TEST_F(MegatronMade, StatesNobodyHasHeardOfAreStatesLikeOthers) {
  add("w", "param", DType::bf16, {5, 3});
  add("w", "master", DType::f32, {5, 3});
  add("w", "second_thoughts", DType::f64, {5, 3});
  group("ponder", {"w"});
  source_.catalog().step = 12;
  for (const char* format : {"megatron", "megatron-fsdp"}) {
    const auto out = written_as(source_, format, 2);
    ASSERT_TRUE(out.has_value()) << out.error().message;
    EXPECT_NE(find(out->checkpoint->catalog(), "w", "second_thoughts"), nullptr) << format;
    EXPECT_EQ(out->checkpoint->catalog().groups[0].optimizer, "ponder") << format;
    EXPECT_EQ(out->checkpoint->catalog().step, 12) << format;
  }
}

TEST_F(MegatronMade, ExpertsHaveAnOptimizerOfTheirOwnWithoutMuon) {
  for (const char* name : {"w", "x.experts.w"}) {
    add(name, "param", DType::f32, {4});
    add(name, "exp_avg", DType::f32, {4});
    group("adamw", {name});
  }
  const auto is_expert = [&](std::size_t i) {
    source_.catalog().groups[i].settings.emplace_back("is_expert_parallel", Value::of_bool(i == 1));
  };
  is_expert(0);
  is_expert(1);
  const auto key = [&] {
    const auto out = written_as(source_, "megatron");
    EXPECT_TRUE(out.has_value()) << out.error().message;
    return *find(out->checkpoint->catalog(), "x.experts.w", "exp_avg")->key;
  };
  EXPECT_EQ(key(), "chained_1.optimizer.state.exp_avg.x.experts.w");
  add("m", "momentum_buffer", DType::f32, {2, 2});
  for (const char* name : {"m", "x.experts.m"}) group("muon", {name});
  is_expert(3);
  EXPECT_EQ(key(), "chained_1.optimizer.state.exp_avg.x.experts.w");
}

TEST_F(MegatronMade, StepsOfParametersInNoGroupAreCountedInOneWithoutSettings) {
  for (const char* name : {"v", "w", "x"}) {
    add(name, "param", DType::f32, {4});
    add(name, "exp_avg", DType::f32, {4});
  }
  group("adamw", {"v"});
  source_.catalog().param_steps = {{"v", 3}, {"w", 3}, {"x", 4}};
  const auto out = written_as(source_, "megatron");
  ASSERT_TRUE(out.has_value()) << out.error().message;
  EXPECT_TRUE(out->plan.dropped.empty());
  EXPECT_EQ(out->checkpoint->catalog().param_steps, source_.catalog().param_steps);
  EXPECT_EQ(content_of(*out->checkpoint), content_of(source_));
}

TEST_F(MegatronMade, WhatCannotBeWrittenIsSaidInOneLineEach) {
  add("w", "param", DType::f32, {4});
  add("v", "param", DType::f32, {4});
  add("odd", "param", DType::f8_e8m0, {4});
  group("adamw", {"w", "v"});
  source_.catalog().param_steps = {{"w", 3}, {"v", 4}};
  Value thing;
  thing.kind = Value::Kind::object;
  thing.text = "collections.deque";
  source_.catalog().values.push_back({"thing", {}, thing});
  const auto out = written_as(source_, "megatron");
  ASSERT_TRUE(out.has_value()) << out.error().message;
  const auto says = [&](std::string_view part) {
    return std::ranges::any_of(out->plan.dropped, [&](const std::string& line) {
      return line.find(part) != std::string::npos && line.find('\n') == std::string::npos;
    });
  };
  EXPECT_TRUE(says("the steps of each parameter of the adamw group"));
  EXPECT_TRUE(says("value \"thing\": holds an object of class collections.deque"));
}

TEST_F(MegatronMade, FsdpDtensorSaysWhichGroupsItCannotHold) {
  add("w", "param", DType::f32, {4});
  add("v", "param", DType::f32, {4});
  group("adamw", {"w", "v"});
  const auto says_group_0 = [](const std::string& line) {
    return line.starts_with("parameter group 0 ");
  };
  // Whose settings these are is recorded nowhere: they would be lost.
  source_.catalog().groups[0].params.clear();
  const auto lost = plan_conversion(source_, {.from = formats::format_of(source_.catalog()),
                                              .to = *formats::format_named("megatron-fsdp")});
  ASSERT_TRUE(lost.has_value()) << lost.error().message;
  EXPECT_TRUE(std::ranges::any_of(lost->plan.dropped, says_group_0));
  // Beside a group that has its parameters it is known to have none: nothing is lost.
  group("adamw", {"v"});
  const auto empty = written_as(source_, "megatron-fsdp");
  ASSERT_TRUE(empty.has_value()) << empty.error().message;
  EXPECT_TRUE(std::ranges::none_of(empty->plan.dropped, says_group_0));
  EXPECT_TRUE(std::ranges::any_of(empty->plan.notes, says_group_0));
}

TEST_F(MegatronMade, TwoTensorsUnderOneKeyAreRefused) {
  add("w", "param", DType::f32, {4});
  add("w", "buffer", DType::f32, {4});
  for (const char* format : {"megatron", "megatron-fsdp"}) {
    const auto out = written_as(source_, format);
    ASSERT_FALSE(out.has_value()) << format;
    EXPECT_EQ(out.error().code, Code::layout);
    EXPECT_NE(out.error().message.find("two entries would be stored under the key"),
              std::string::npos);
  }
}

}  // namespace

}  // namespace ebb
