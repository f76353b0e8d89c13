// DeepSpeed's universal form: what its own converter wrote, and what ours writes, read again.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <utility>

#include "ebb/formats/deepspeed/deepspeed.h"
#include "ebb/formats/deepspeed/names.h"
#include "ebb/formats/describe.h"
#include "tests/formats/deepspeed/deepspeed_fixtures.h"
#include "tests/formats/deepspeed/made_content.h"
#include "tests/support/emit_in_memory.h"
#include "tests/support/expected.h"

namespace ebb {

namespace {

namespace fs = std::filesystem;
using test_support::MadeContent;
using test_support::MemoryTree;

class UniversalFixture : public testing::TestWithParam<std::string> {};

TEST_P(UniversalFixture, HoldsWhatTheEngineHeld) {
  const fs::path folder = kFixtures / GetParam();
  const auto checkpoint = formats::describe(test_support::load_tree(folder / "data"));
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  EXPECT_EQ((*checkpoint)->catalog().format, "deepspeed-universal");
  EXPECT_TRUE(prove_coverage((*checkpoint)->catalog()).has_value());
  EXPECT_EQ(differences(**checkpoint, folder / "expected.json", test_support::Compare::tensors),
            "");
  EXPECT_EQ(test_support::value_differences((*checkpoint)->catalog(), folder / "expected.json",
                                            kNotStored),
            "");
}

INSTANTIATE_TEST_SUITE_P(FromItsOwnConverter, UniversalFixture,
                         testing::Values("universal_pipeline", "universal_z1_adamw",
                                         "universal_z3_adamw"));

std::shared_ptr<MemoryTree> written(const Checkpoint& content, std::uint32_t world) {
  const Layout layout = test_support::layout_for(content.catalog(), Policy::replicated, world);
  const auto plan = formats::emit_deepspeed_universal({content.catalog(), layout});
  EBB_CHECK(plan.has_value());
  EXPECT_TRUE(plan->dropped.empty());
  auto tree = test_support::carry_out(*plan, content, "out");
  EBB_CHECK(tree.has_value());
  return std::move(*tree);
}

std::unique_ptr<Checkpoint> read_again(std::shared_ptr<const formats::SourceTree> tree) {
  auto again = formats::describe(std::move(tree));
  EXPECT_TRUE(again.has_value()) << again.error().message;
  EBB_CHECK(again.has_value());
  return std::move(*again);
}

MadeContent muon_and_adam() {
  MadeContent content("made", DType::bf16);
  content.add_group("muon", {{"w.q", {5, 7}}, {"w.k", {13, 3}}}, 0.02);
  content.add_group("adamw", {{"emb", {11, 6}}, {"gain", {1}}}, 0.003);
  content.add_frozen("frozen", {3, 3});
  content.add_buffer("count", DType::i64, {});
  content.add_value("tied", Value::of_dict({{"alias", Value::of_string("emb")}}));
  content.add_value("epoch", Value::of_int(3));
  return content;
}

TEST(Universal, HoldsMuonBesideAdamEachStateUnderItsOwnName) {
  const MadeContent content = muon_and_adam();
  const auto tree = written(content, 3);
  EXPECT_EQ(test_support::content_differences(content, *read_again(tree)), "");
  const std::string zero = "global_step7_universal/zero/";
  EXPECT_NE(tree->find(zero + "w.q/momentum_buffer.pt"), nullptr);
  EXPECT_EQ(tree->find(zero + "w.q/step.pt"), nullptr) << "Muon counts no steps";
  EXPECT_EQ(tree->find(zero + "w.q/exp_avg.pt"), nullptr);
  EXPECT_NE(tree->find(zero + "emb/exp_avg_sq.pt"), nullptr);
  EXPECT_NE(tree->find(zero + "emb/step.pt"), nullptr);
  EXPECT_EQ(tree->find(zero + "alias/fp32.pt"), nullptr) << "a tied name is no parameter";
}

// DeepSpeed's description of tensor-parallel shards: whoever converts it next needs it whole.
TEST(Universal, KeepsTheAffineMap) {
  const auto dict = [](auto... entries) { return Value::of_dict({entries...}); };
  const auto entry = [](std::string key, Value value) {
    return std::pair<std::string, Value>(std::move(key), std::move(value));
  };
  const Value sizes = Value::of_list({Value::of_int(4), Value::of_int(8)});
  MadeContent content = muon_and_adam();
  content.add_value(
      "universal_checkpoint_info",
      dict(
          entry("universal_checkpoint_version", Value::of_real(0.4)),
          entry("affine_map",
                dict(entry("version", Value::of_int(1)),
                     entry("params", dict(entry("w\\.q", dict(entry("logical_shape", sizes)))))))));
  const auto universal = read_again(written(content, 2));
  EXPECT_EQ(test_support::content_differences(content, *universal), "");
  const Layout layout = test_support::layout_for(universal->catalog(), Policy::zero3, 2);
  const auto plan = formats::emit_deepspeed({universal->catalog(), layout});
  ASSERT_TRUE(plan.has_value()) << plan.error().message;
  const auto ranks = test_support::carry_out(*plan, *universal, "out");
  ASSERT_TRUE(ranks.has_value());
  EXPECT_EQ(test_support::content_differences(content, *read_again(*ranks)), "");
}

// From every fixture of ranks, and from there to ranks again: nothing is lost on the way.
TEST(Universal, HoldsEveryRankCheckpointThereIs) {
  std::size_t seen = 0;
  for (const auto& entry : fs::directory_iterator(kFixtures)) {
    const std::string name = entry.path().filename().string();
    if (!fs::exists(entry.path() / "data/latest") || name.starts_with("bad_")) continue;
    const auto content = read_again(test_support::load_tree(entry.path() / "data"));
    const auto universal = read_again(written(*content, content->catalog().world));
    EXPECT_EQ(universal->catalog().format, "deepspeed-universal") << name;
    // What is made of a run without ZeRO is for one with it.
    const bool same_stage = content->catalog().partition.find("(stage 0)") == std::string::npos;
    EXPECT_EQ(test_support::content_differences(*content, *universal),
              same_stage ? "" : "value ds_config differs\n")
        << name;
    const Layout layout = test_support::layout_for(universal->catalog(), Policy::zero3, 3);
    const auto plan = formats::emit_deepspeed({universal->catalog(), layout});
    ASSERT_TRUE(plan.has_value()) << name << ": " << plan.error().message;
    const auto ranks = test_support::carry_out(*plan, *universal, "out");
    ASSERT_TRUE(ranks.has_value()) << name;
    const std::string lost = test_support::content_differences(*content, *read_again(*ranks));
    // A sub-group of ranks has one dtype for all of its parameters, the wider one.
    EXPECT_TRUE(lost.empty() || lost == "value ds_config differs\n" ||
                lost == "blocks.2.w momentum_buffer: of another dtype, F32\n")
        << name << ": " << lost;
    ++seen;
  }
  EXPECT_GE(seen, 20u);
}

TEST(Universal, IsTakenForRankFilesWhereThoseAreBesideIt) {
  const auto tree = test_support::load_tree(kFixtures / "z1_adamw_bf16_w2" / "data");
  const auto universal = test_support::load_tree(kFixtures / "universal_z1_adamw" / "data");
  for (const auto& entry : universal->entries())
    tree->add(entry.name, universal->bytes_of(entry.name));
  EXPECT_EQ(read_again(tree)->catalog().format, "deepspeed");
  const auto named = formats::describe_deepspeed_universal(tree);
  ASSERT_TRUE(named.has_value()) << named.error().message;
  EXPECT_EQ((*named)->catalog().format, "deepspeed-universal");
}

std::string refusal_of(const std::shared_ptr<MemoryTree>& tree, Code code) {
  const auto checkpoint = formats::describe(tree);
  if (checkpoint) return "";
  EXPECT_EQ(checkpoint.error().code, code) << checkpoint.error().message;
  return checkpoint.error().message;
}

std::shared_ptr<MemoryTree> fixture_without(std::string_view left_out) {
  const auto good = test_support::load_tree(kFixtures / "universal_z1_adamw" / "data");
  auto tree = std::make_shared<MemoryTree>("ck");
  for (const auto& entry : good->entries())
    if (entry.name.find(left_out) == std::string::npos)
      tree->add(entry.name, good->bytes_of(entry.name));
  return tree;
}

TEST(UniversalDamage, AMissingStateIsNamed) {
  EXPECT_EQ(refusal_of(fixture_without("blocks.0.mlp.up/exp_avg.pt"), Code::incomplete),
            "ck: global_step3_universal/zero/blocks.0.mlp.up/exp_avg.pt is missing");
  EXPECT_EQ(refusal_of(fixture_without("blocks.0.mlp.up/step.pt"), Code::incomplete),
            "ck: global_step3_universal/zero/blocks.0.mlp.up/step.pt is missing")
      << "DeepSpeed stops where one parameter of a group has none";
  EXPECT_EQ(refusal_of(fixture_without("norm.scale/"), Code::incomplete),
            "ck: global_step3_universal/zero/norm.scale/exp_avg.pt is missing");
  EXPECT_EQ(refusal_of(fixture_without("model_states"), Code::incomplete),
            "ck: global_step3_universal: model file of rank 0 is missing");
  EXPECT_EQ(refusal_of(fixture_without("optimizer_state.pt"), Code::incomplete),
            "ck: latest_universal names \"global_step3_universal\", which has no "
            "zero/optimizer_state.pt");
}

TEST(UniversalDamage, AParameterOfAnotherStepIsNamed) {
  MadeContent later = muon_and_adam();
  for (auto& [name, steps] : later.edit().param_steps) steps = 8;
  const auto tree = written(muon_and_adam(), 1);
  const std::string step = "global_step7_universal/zero/emb/step.pt";
  tree->bytes_of(step) = written(later, 1)->bytes_of(step);
  const std::string message = refusal_of(tree, Code::corrupt);
  EXPECT_NE(message.find("emb/step.pt: parameter \"emb\" has taken 8.0 steps, others of its group "
                         "7.0"),
            std::string::npos)
      << message;
}

// The archive in a file says which state it was written as; nothing else does.
TEST(UniversalDamage, StatesOfAParameterThatWereExchangedAreNamed) {
  const auto tree = fixture_without("nothing");
  const std::string up = "global_step3_universal/zero/blocks.0.mlp.up/";
  std::swap(tree->bytes_of(up + "exp_avg.pt"), tree->bytes_of(up + "exp_avg_sq.pt"));
  EXPECT_EQ(refusal_of(tree, Code::corrupt),
            "ck: " + up + "exp_avg.pt: written as exp_avg_sq.pt: another state of the parameter");
}

TEST(UniversalDamage, ATensorOfAnotherSizeIsNamed) {
  const auto tree = fixture_without("nothing");
  const std::string zero = "global_step3_universal/zero/";
  tree->bytes_of(zero + "norm.scale/fp32.pt") = tree->bytes_of(zero + "norm.temp/fp32.pt");
  const std::string message = refusal_of(tree, Code::corrupt);
  EXPECT_NE(message.find("norm.scale master has 1 elements, its parameter [7] has 7"),
            std::string::npos)
      << message;
}

TEST(UniversalRefuses, NamesThatCanBeNoFolder) {
  for (const std::string name : {"a/b", "..", "optimizer_state.pt"}) {
    MadeContent content("made", DType::f32);
    content.add_group("adamw", {{name, {3}}}, 0.1);
    const Layout layout = test_support::layout_for(content.catalog(), Policy::replicated, 1);
    const auto plan = formats::emit_deepspeed_universal({content.catalog(), layout});
    ASSERT_FALSE(plan.has_value()) << name;
    EXPECT_EQ(plan.error().code, Code::unsupported);
    EXPECT_NE(plan.error().message.find("\"" + name + "\""), std::string::npos);
  }
}

}  // namespace

}  // namespace ebb
