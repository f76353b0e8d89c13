// What the writers plan, carried out in memory, is what the readers find again - on any number of
// ranks, in every stage - and every partition is as long and as padded as DeepSpeed's own.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "ebb/formats/catalog/resume.h"
#include "ebb/formats/core/units.h"
#include "ebb/formats/deepspeed/deepspeed.h"
#include "ebb/formats/torch/archive.h"
#include "tests/formats/deepspeed/emitted.h"

namespace ebb {

namespace {

using formats::PickleGraph;
using formats::PickleId;
using test_support::emit;
using test_support::Emitted;
using test_support::MadeContent;
using Param = MadeContent::Param;

constexpr std::string_view kTag = "global_step7/";

// The pickle of one of the emitted files.
PickleGraph graph_of(const test_support::MemoryTree& tree, const std::string& name) {
  const auto source = tree.open(name);
  EBB_CHECK(source.has_value());
  auto archive = formats::TorchArchive::open(*source, 0, (*source)->size());
  EBB_CHECK(archive.has_value());
  return archive->graph();
}
PickleGraph optimizer_of(const Emitted& emitted, std::uint32_t rank, std::string_view prefix = "") {
  return graph_of(*emitted.tree, std::string(kTag) + std::string(prefix) + "zero_pp_rank_" +
                                     std::to_string(rank) + "_mp_rank_00_optim_states.pt");
}
PickleId inner(const PickleGraph& graph, std::string_view key) {
  return graph.find(graph.find(graph.root(), "optimizer_state_dict"), key);
}
std::vector<std::int64_t> integers(const PickleGraph& graph, PickleId list) {
  std::vector<std::int64_t> out;
  for (const PickleId item : graph.items(list)) out.push_back(graph.integer(item));
  return out;
}
std::uint64_t elems(const PickleGraph& graph, PickleId tensor) {
  const auto found = torch_tensor(graph, tensor);
  EBB_CHECK(found.has_value());
  return found->elems();
}
std::uint64_t state_elems(const PickleGraph& graph, PickleId base, std::int64_t buffer,
                          std::string_view state) {
  return elems(graph, graph.find(graph.find(graph.find(base, "state"), buffer), state));
}

MadeContent adam_of_4_5_1(DType model) {
  MadeContent content("made", model);
  content.add_group("adamw", {{"a", {4}}, {"b", {5}}, {"c", {1}}}, 0.01);
  return content;
}
// In the order that DeepSpeed gives a Muon group: 4, 5 and 1 elements.
MadeContent muon_of_4_5_1() {
  MadeContent content("made", DType::bf16);
  content.add_group("muon", {{"a", {4, 1}}, {"b", {1, 5}}, {"c", {1, 1}}}, 0.02);
  return content;
}

MadeContent everything(DType model) {
  MadeContent content("made", model);
  content.add_group("muon", {{"w.q", {5, 7}}, {"w.k", {13, 3}}, {"w.up", {9, 5}}}, 0.02);
  content.add_group("adamw", {{"emb", {11, 6}}, {"gain", {1}}, {"bias", {13}}}, 0.003);
  content.add_group("adamw", {{"head", {6, 11}}, {"scale", {7}}}, 0.001);
  content.add_frozen("frozen.w", {3, 3});
  content.add_frozen("frozen.b", {1});
  content.add_buffer("mean", DType::f32, {6});
  content.add_buffer("count", DType::i64, {});
  content.add_value("tied", Value::of_dict({{"alias", Value::of_string("emb")}}));
  content.add_value("lr_scheduler", Value::of_dict({{"last_batch_iteration", Value::of_int(6)}}));
  content.add_value("epoch", Value::of_int(3));
  return content;
}

class DeepSpeedEmit : public testing::TestWithParam<std::tuple<Policy, std::uint32_t>> {};

TEST_P(DeepSpeedEmit, IsReadBackAsItWas) {
  const auto [policy, world] = GetParam();
  for (const DType model : {DType::bf16, DType::f16, DType::f32}) {
    for (const MadeContent& content : {everything(model), adam_of_4_5_1(model), muon_of_4_5_1()}) {
      const Emitted emitted = emit(content, policy, world);
      EXPECT_EQ(test_support::content_differences(content, *emitted.checkpoint), "");
      EXPECT_TRUE(emitted.plan.dropped.empty()) << emitted.plan.dropped.front();
      EXPECT_TRUE(prove_coverage(emitted.checkpoint->catalog()).has_value());
      EXPECT_EQ(emitted.checkpoint->catalog().world, world);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, DeepSpeedEmit,
                         testing::Combine(testing::Values(Policy::zero12, Policy::zero12_boundary,
                                                          Policy::zero3),
                                          testing::Range(1u, 9u)));

// 10 elements, 3 ranks, whole pairs: partitions of 4, the last one half padding.
TEST(DeepSpeedZero12, CutsEvenlyAndPadsTheTail) {
  const Emitted emitted = emit(adam_of_4_5_1(DType::f32), Policy::zero12, 3);
  const std::uint64_t lean[] = {4, 4, 2};
  const std::int64_t padding[] = {0, 0, 2};
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    const PickleGraph graph = optimizer_of(emitted, rank);
    const PickleId masters = inner(graph, "single_partition_of_fp32_groups");
    EXPECT_EQ(elems(graph, graph.items(masters)[0]), lean[rank]) << "masters are stored lean";
    EXPECT_EQ(state_elems(graph, inner(graph, "base_optimizer_state"), 0, "exp_avg"), 4u);
    EXPECT_EQ(integers(graph, inner(graph, "group_paddings")), std::vector{padding[rank]});
    EXPECT_EQ(integers(graph, inner(graph, "partition_count")), std::vector<std::int64_t>{3});
  }
  EXPECT_EQ(emitted.checkpoint->catalog().padding_elems, 2u);
  // The second parameter lies on ranks 1 and 2, the third behind its end.
  const PickleGraph last = optimizer_of(emitted, 2);
  const PickleId places = last.items(inner(last, "param_slice_mappings"))[0];
  EXPECT_EQ(last.find(places, "a"), formats::kNoPickle);
  const PickleId second = last.state(last.find(places, "b"));
  EXPECT_EQ(last.integer(last.find(second, "start")), 0);
  EXPECT_EQ(last.integer(last.find(second, "numel")), 1);
  const PickleId third = last.state(last.find(places, "c"));
  EXPECT_EQ(last.integer(last.find(third, "start")), 1);
}

TEST(DeepSpeedZero12, RanksPastTheLastElementHoldPaddingOnly) {
  const Emitted emitted = emit(adam_of_4_5_1(DType::f32), Policy::zero12, 8);
  // 16 elements after padding, 2 a rank: 5 ranks hold the 10 real ones.
  for (std::uint32_t rank = 0; rank < 8; ++rank) {
    const PickleGraph graph = optimizer_of(emitted, rank);
    EXPECT_EQ(elems(graph, graph.items(inner(graph, "single_partition_of_fp32_groups"))[0]),
              rank < 5 ? 2u : 0u);
    EXPECT_EQ(integers(graph, inner(graph, "group_paddings"))[0], rank < 5 ? 0 : 2);
  }
  EXPECT_EQ(emitted.checkpoint->catalog().padding_elems, 6u);
}

// Stages 1 and 2 keep the momentum of every matrix that a rank touches, whole, on each of them.
TEST(DeepSpeedZero12, MuonMomentumIsWholeWhereverItsMatrixIsTouched) {
  const Emitted emitted = emit(muon_of_4_5_1(), Policy::zero12, 3);
  const std::uint64_t touched[] = {4, 5, 6};
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    const PickleGraph graph = optimizer_of(emitted, rank, "bf16_");
    EXPECT_EQ(state_elems(graph, inner(graph, "base_optimizer_state"), 0, "momentum_buffer"),
              touched[rank]);
  }
}

TEST(DeepSpeedZero12, StagesOneAndTwoHoldTheSameBytes) {
  MadeContent content = everything(DType::bf16);
  content.edit().format = "deepspeed";
  content.edit().values.push_back({"zero_stage", {"zero_stage"}, Value::of_int(1), true});
  const Emitted one = emit(content, Policy::zero12, 3);
  content.edit().values.back().value = Value::of_int(2);
  const Emitted two = emit(content, Policy::zero12, 3);
  EXPECT_EQ(one.checkpoint->catalog().partition, "zero12 over 3 ranks (stage 1)");
  EXPECT_EQ(two.checkpoint->catalog().partition, "zero12 over 3 ranks (stage 2)");
  EXPECT_EQ(test_support::content_differences(*one.checkpoint, *two.checkpoint),
            "value ds_config differs\n");
  const auto& left = one.checkpoint->catalog().tensors;
  const auto& right = two.checkpoint->catalog().tensors;
  ASSERT_EQ(left.size(), right.size());
  for (std::size_t i = 0; i < left.size(); ++i) {
    ASSERT_EQ(left[i].chunks.size(), right[i].chunks.size());
    for (std::size_t c = 0; c < left[i].chunks.size(); ++c) {
      EXPECT_EQ(left[i].chunks[c].box, right[i].chunks[c].box);
      EXPECT_EQ(left[i].chunks[c].holder, right[i].chunks[c].holder);
    }
  }
}

// No cut through a parameter; every partition as long as the longest, which is rounded up to whole
// pairs so that ranks begin on four bytes in 16-bit dtypes too.
TEST(DeepSpeedBoundary, PadsEveryPartitionToTheLargest) {
  const Emitted emitted = emit(muon_of_4_5_1(), Policy::zero12_boundary, 3);
  const std::uint64_t lean[] = {4, 5, 1};
  const std::int64_t padding[] = {2, 1, 5};
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    const PickleGraph graph = optimizer_of(emitted, rank, "bf16_");
    EXPECT_EQ(elems(graph, graph.items(inner(graph, "single_partition_of_fp32_groups"))[0]),
              lean[rank]);
    EXPECT_EQ(integers(graph, inner(graph, "group_paddings"))[0], padding[rank]);
    EXPECT_EQ(state_elems(graph, inner(graph, "base_optimizer_state"), 0, "momentum_buffer"),
              lean[rank])
        << "each rank's own matrices and no others";
  }
  EXPECT_EQ(emitted.checkpoint->catalog().padding_elems, 8u);
  EXPECT_EQ(emitted.checkpoint->catalog().partition, "zero12-boundary over 3 ranks (stage 2)");
  for (const TensorEntry& tensor : emitted.checkpoint->catalog().tensors)
    EXPECT_EQ(tensor.chunks.size(), 1u) << tensor.name << " " << tensor.state;
}

TEST(DeepSpeedBoundary, OneHugeMatrixLeavesTheOtherRanksEmpty) {
  MadeContent content("made", DType::bf16);
  content.add_group("muon", {{"huge", {16, 8}}, {"small", {2, 2}}}, 0.02);
  const Emitted emitted = emit(content, Policy::zero12_boundary, 4);
  EXPECT_EQ(test_support::content_differences(content, *emitted.checkpoint), "");
  const std::int64_t padding[] = {0, 124, 128, 128};
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    const PickleGraph graph = optimizer_of(emitted, rank, "bf16_");
    EXPECT_EQ(integers(graph, inner(graph, "group_paddings"))[0], padding[rank]);
  }
}

// Only matrices must not be split: the Adam group beside them is cut evenly, as ever.
TEST(DeepSpeedBoundary, EveryGroupHasItsOwnLayoutAndPadding) {
  MadeContent content = muon_of_4_5_1();
  content.add_group("adamw", {{"x", {4}}, {"y", {5}}, {"z", {1}}}, 0.01);
  const Emitted emitted = emit(content, Policy::zero12_boundary, 3);
  const std::vector<std::int64_t> padding[] = {{2, 0}, {1, 0}, {5, 2}};
  for (std::uint32_t rank = 0; rank < 3; ++rank)
    EXPECT_EQ(integers(optimizer_of(emitted, rank, "bf16_"),
                       inner(optimizer_of(emitted, rank, "bf16_"), "group_paddings")),
              padding[rank]);
  EXPECT_EQ(test_support::content_differences(content, *emitted.checkpoint), "");
}

TEST(DeepSpeedBoundary, IsNotWhatDeepSpeedItselfResumes) {
  const auto answer = [](const Emitted& emitted) {
    return formats::resume_answer(formats::deepspeed_resume(), {emitted.checkpoint->catalog(), 3});
  };
  EXPECT_TRUE(answer(emit(muon_of_4_5_1(), Policy::zero12, 3)).resumable);
  const formats::ResumeAnswer no = answer(emit(muon_of_4_5_1(), Policy::zero12_boundary, 3));
  EXPECT_FALSE(no.resumable);
  EXPECT_EQ(no.why, "its partitions end where parameters do, which no released DeepSpeed reads");
  EXPECT_EQ(no.partition, "zero12");
}

TEST(DeepSpeedBoundary, BecomesTheFlatLayoutAndBack) {
  const MadeContent content = everything(DType::bf16);
  const Emitted boundary = emit(content, Policy::zero12_boundary, 3);
  const Emitted flat = emit(*boundary.checkpoint, Policy::zero12, 5);
  const Emitted again = emit(*flat.checkpoint, Policy::zero12_boundary, 2);
  EXPECT_EQ(test_support::content_differences(content, *flat.checkpoint), "");
  EXPECT_EQ(test_support::content_differences(content, *again.checkpoint), "");
}

// Each parameter on its own: ceil(n / ranks) elements a rank, padding behind it; the momentum is
// cut exactly like the masters.
TEST(DeepSpeedZero3, PadsInsideEveryParameterAndCutsMomentumLikeMasters) {
  const Emitted emitted = emit(muon_of_4_5_1(), Policy::zero3, 3);
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    const PickleGraph graph = optimizer_of(emitted, rank, "bf16_");
    EXPECT_EQ(elems(graph, graph.items(inner(graph, "fp32_flat_groups"))[0]), 2u + 2 + 1);
    EXPECT_EQ(state_elems(graph, inner(graph, "optimizer_state_dict"), 0, "momentum_buffer"),
              2u + 2 + 1);
  }
  EXPECT_EQ(emitted.checkpoint->catalog().padding_elems, 15u - 10);
}

// DeepSpeed's Adam hands its counter to C++ as an integer; torch's, which a configuration may ask
// for, keeps it in a tensor and takes either.
TEST(DeepSpeedEmit, CountsStepsInTensorsOnlyWhereTheRunItselfDid) {
  MadeContent content = adam_of_4_5_1(DType::f32);
  content.edit().groups[0].settings.emplace_back("foreach", Value{});
  for (const bool from_deepspeed : {false, true}) {
    if (from_deepspeed) content.edit().format = "deepspeed";
    const PickleGraph graph = optimizer_of(emit(content, Policy::zero12, 2), 0);
    const PickleId states = graph.find(inner(graph, "base_optimizer_state"), "state");
    const PickleId step = graph.find(graph.find(states, 0), "step");
    EXPECT_EQ(graph.is(step, formats::PickleKind::integer), !from_deepspeed);
    EXPECT_EQ(is_torch_tensor(graph, step), from_deepspeed);
  }
}

// An elastic checkpoint keeps no settings; a group without any could take no step.
TEST(DeepSpeedEmit, GivesGroupsWithoutSettingsThoseOfTheConfiguration) {
  MadeContent content = adam_of_4_5_1(DType::f32);
  content.edit().format = "deepspeed";
  content.edit().groups[0].settings.clear();
  const Value params =
      Value::of_dict({{"lr", Value::of_real(0.5)}, {"torch_adam", Value::of_bool(false)}});
  content.add_value(
      "ds_config",
      Value::of_dict(
          {{"optimizer", Value::of_dict({{"type", Value::of_string("AdamW")}, {"params", params}})},
           {"zero_optimization", Value::of_dict({{"stage", Value::of_int(2)}})}}));
  const Emitted emitted = emit(content, Policy::zero12, 2);
  ASSERT_EQ(emitted.checkpoint->catalog().groups.size(), 1u);
  const auto& settings = emitted.checkpoint->catalog().groups[0].settings;
  ASSERT_EQ(settings.size(), 2u);
  EXPECT_EQ(settings[0].first + to_json(settings[0].second), "lr0.5");
  EXPECT_EQ(settings[1].first + to_json(settings[1].second), "bias_correctiontrue");
}

std::vector<std::string> buffers_in(const Checkpoint& checkpoint) {
  std::vector<std::string> names;
  for (const TensorEntry& tensor : checkpoint.catalog().tensors)
    if (tensor.state == "buffer") names.push_back(tensor.name);
  return names;
}

// Other formats call buffers parameters. Stage 3 keeps frozen parameters in another place, from
// which it takes no buffer.
TEST(DeepSpeedEmit, FindsTheBuffersOfWhatHasNone) {
  using Names = std::vector<std::string>;
  MadeContent content = adam_of_4_5_1(DType::f32);
  content.edit().format = "dcp";
  for (const char* name : {"bn.running_mean", "bn.running_var", "scale", "other.running_mean"})
    content.add_frozen(name, {3});
  content.add_buffer("bn.num_batches_tracked", DType::i64, {});
  content.edit().tensors.back().state = "param";
  const Names batch_norm = {"bn.num_batches_tracked", "bn.running_mean", "bn.running_var"};
  const Emitted third = emit(content, Policy::zero3, 2);
  Names found = buffers_in(*third.checkpoint);
  std::ranges::sort(found);
  EXPECT_EQ(found, batch_norm);
  ASSERT_EQ(third.plan.notes.size(), 1u) << "nothing tells of the others";
  EXPECT_TRUE(third.plan.notes[0].starts_with(
      "in no optimizer group, and written as frozen parameters: scale, other.running_mean. "));
  EXPECT_TRUE(emit(content, Policy::zero12, 2).plan.notes.empty()) << "which loads either";
  content.add_value("buffer_names", Value::of_list({Value::of_string("scale")}));
  const Emitted told = emit(content, Policy::zero3, 2);
  EXPECT_EQ(buffers_in(*told.checkpoint).size(), 4u);
  EXPECT_TRUE(told.plan.notes.empty());
  const formats::Value* names = formats::value_at(told.checkpoint->catalog(), {"buffer_names"});
  ASSERT_NE(names, nullptr) << "for the formats that it goes through";
  EXPECT_EQ(names->items.size(), 3u) << "whole numbers are no parameters";
}

// What a group of parameters lacks cannot be made up: zeros would train on as if they were state.
TEST(DeepSpeedEmitRefuses, AStateThatSomeParametersOfAGroupLack) {
  MadeContent content = adam_of_4_5_1(DType::f32);
  std::erase_if(content.edit().tensors,
                [](const auto& t) { return t.name == "b" && t.state == "exp_avg"; });
  const Layout layout = test_support::layout_for(content.catalog(), Policy::zero3, 2);
  const auto plan = formats::emit_deepspeed({content.catalog(), layout});
  ASSERT_FALSE(plan.has_value());
  EXPECT_EQ(plan.error().code, Code::unsupported);
  EXPECT_NE(plan.error().message.find("\"b\" has no exp_avg"), std::string::npos)
      << plan.error().message;
}

TEST(DeepSpeedEmitRefuses, APartitionThatNoStageHas) {
  const MadeContent content = adam_of_4_5_1(DType::f32);
  const Layout layout = test_support::layout_for(content.catalog(), Policy::rows, 2);
  const auto plan = formats::emit_deepspeed({content.catalog(), layout});
  ASSERT_FALSE(plan.has_value());
  EXPECT_EQ(plan.error().message, "DeepSpeed cannot hold the partition rows");
}

TEST(DeepSpeedEmit, KeepsAScalersCountersAndMakesOneWhereHalfPrecisionHasNone) {
  MadeContent content = adam_of_4_5_1(DType::f16);
  const Emitted first = emit(content, Policy::zero3, 2);
  const auto scale_of = [](const Emitted& emitted) {
    for (const ValueEntry& value : emitted.checkpoint->catalog().values)
      if (value.key == "loss_scale") return to_json(value.value);
    return std::string("none");
  };
  EXPECT_EQ(scale_of(first), "65536.0");
  content.add_value("loss_scaler", Value::of_dict({{"class", Value::of_string("DynamicLossScaler")},
                                                   {"cur_scale", Value::of_real(512)},
                                                   {"cur_iter", Value::of_int(7)},
                                                   {"last_overflow_iter", Value::of_int(5)}}));
  for (const Policy policy : {Policy::zero12, Policy::zero3}) {
    const Emitted emitted = emit(content, policy, 2);
    EXPECT_EQ(test_support::content_differences(content, *emitted.checkpoint), "");
    EXPECT_EQ(scale_of(emitted), "512.0");
  }
}

}  // namespace

}  // namespace ebb
