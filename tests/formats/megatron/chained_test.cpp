// Several optimizers in one job: which of them has a parameter, and under which words each keeps
// it. The fixtures are of megatron-core 0.19.2 (tests/judges/megatron_job.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "ebb/formats/registry.h"
#include "tests/formats/megatron/support.h"
#include "tests/formats/megatron/written.h"
#include "tests/libswap/transfer/memory_checkpoint.h"

namespace ebb {
namespace {

using megatron_test::content_of;
using megatron_test::describe_case;
using megatron_test::find;
using megatron_test::values_of;
using megatron_test::written_as;

std::set<std::string> keys_of(const Catalog& catalog) {
  std::set<std::string> out;
  for (const TensorEntry& tensor : catalog.tensors) out.insert(*tensor.key);
  return out;
}

// The default of `--optimizer muon --use-distributed-optimizer` since 0.18: no key says to which
// optimizer it belongs, the states do.
TEST(MegatronChained, WithoutPrefixesTheStatesTellWhoseAParameterIs) {
  const auto checkpoint = describe_case("muon_distopt_tp2_dp2");
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  const Catalog& catalog = (*checkpoint)->catalog();
  ASSERT_EQ(catalog.groups.size(), 3u);
  EXPECT_EQ(catalog.groups[0].optimizer, "muon");
  EXPECT_EQ(catalog.groups[0].params.size(), 5u);
  EXPECT_EQ(catalog.groups[1].params,
            (std::vector<std::string>{"embedding.word_embeddings.weight", "output_layer.weight"}));
  EXPECT_EQ(catalog.groups[2].params.size(), 10u);
  for (const std::string& name : catalog.groups[0].params) {
    EXPECT_NE(find(catalog, name, "momentum_buffer"), nullptr) << name;
    EXPECT_FALSE(catalog.param_steps.contains(name)) << name;
  }
  for (const std::size_t group : {1u, 2u})
    for (const std::string& name : catalog.groups[group].params)
      EXPECT_EQ(catalog.param_steps.at(name), 3) << name;
}

TEST(MegatronChained, BucketsBesideMuonHaveTheirGroupsInAnObject) {
  const auto checkpoint = describe_case("muon_distopt_buckets_dp2");
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  const Catalog& catalog = (*checkpoint)->catalog();
  ASSERT_EQ(catalog.groups.size(), 3u);
  EXPECT_EQ(catalog.groups[0].optimizer, "muon");
  EXPECT_EQ(catalog.groups[0].params.size(), 5u);
  EXPECT_EQ(catalog.groups[1].optimizer, "adamw");
  EXPECT_TRUE(catalog.groups[1].params.empty()) << "nothing stored says whose the buckets are";
}

class MegatronChainedElsewhere : public testing::TestWithParam<const char*> {};

// By way of another format keys and common state are again what a job asks for: it goes by the
// stored content_metadata, and that has no chained_optim_avoid_prefix now.
TEST_P(MegatronChainedElsewhere, KeysAndCommonStateComeBack) {
  const auto source = describe_case("muon_distopt_tp2_dp2");
  ASSERT_TRUE(source.has_value());
  const auto there = written_as(**source, GetParam(), 3);
  ASSERT_TRUE(there.has_value()) << there.error().message;
  const auto back = written_as(*there->checkpoint, "megatron", 2);
  ASSERT_TRUE(back.has_value()) << back.error().message;
  const Catalog& found = back->checkpoint->catalog();
  std::set<std::string> wanted;
  for (const TensorEntry& tensor : (*source)->catalog().tensors) {
    const bool muon = std::ranges::count((*source)->catalog().groups[0].params, tensor.name) == 1;
    const std::string prefix = muon ? "chained_0." : "chained_1.";
    wanted.insert((tensor.state == "param" ? "" : prefix) + *tensor.key);
  }
  EXPECT_TRUE(keys_of(found) == wanted);
  EXPECT_EQ(formats::value_at(found, {"content_metadata", "chained_optim_avoid_prefix"}), nullptr);
  EXPECT_TRUE(content_of(*back->checkpoint) == content_of(**source));
  EXPECT_EQ(found.param_steps, (*source)->catalog().param_steps);
  const Value* all = formats::value_at(found, {"optimizer"});
  ASSERT_NE(all, nullptr);
  ASSERT_EQ(all->entries.size(), 2u);
  const Value* distributed = &all->entries[1].second;
  EXPECT_EQ(distributed->find("param_state_sharding_type")->text, "fully_reshardable");
  for (const Value& group : distributed->find("optimizer")->find("param_groups")->items)
    EXPECT_EQ(group.find("step")->integer, 3);  // the fused Adam counts so
  EXPECT_EQ(all->entries[0].second.find("param_state_sharding_type"), nullptr);
}

INSTANTIATE_TEST_SUITE_P(Formats, MegatronChainedElsewhere,
                         testing::Values("dcp", "ebb", "deepspeed", "torch"));

class MadeChain : public testing::Test {
 protected:
  void add(const std::string& name, const std::string& state) {
    const std::uint32_t number = source_.add(name, DType::f32, {4}, random_);
    source_.catalog().tensors[number].state = state;
    source_.add_chunk(number, formats::whole({4}), 0);
  }
  // Two groups of each optimizer, one after the other, as DeepSpeed and torch have them.
  MadeChain() {
    source_.catalog().format = "elsewhere";
    for (const char* number : {"0", "1"})
      for (const char* optimizer : {"adamw", "muon"}) {
        const std::string name = std::string(optimizer) + number;
        for (const char* state : {"param", "master"}) add(name, state);
        add(name, optimizer == std::string("muon") ? "momentum_buffer" : "exp_avg");
        source_.catalog().groups.push_back({optimizer, {{"lr", Value::of_real(0.5)}}, {name}});
      }
  }
  std::string key(const std::string& name, const std::string& state) {
    const auto out = written_as(source_, "megatron");
    EXPECT_TRUE(out.has_value()) << out.error().message;
    return *find(out->checkpoint->catalog(), name, state)->key;
  }

  libswap::testing::Random random_{7};
  libswap::testing::MemoryCheckpoint source_;
};

// Muon's optimizer is the first of Megatron's chain, whatever the order of the groups; what comes
// back is in the order it was in, also where the groups name nobody.
TEST_F(MadeChain, TheOrderOfGroupsComesBack) {
  for (const bool named : {true, false}) {
    for (GroupEntry& group : source_.catalog().groups)
      if (!named) group.params.clear();
    const auto out = written_as(source_, "megatron");
    ASSERT_TRUE(out.has_value()) << out.error().message;
    const auto& groups = out->checkpoint->catalog().groups;
    ASSERT_EQ(groups.size(), 4u);
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(groups[i].optimizer, source_.catalog().groups[i].optimizer) << i;
      if (named) {
        EXPECT_EQ(groups[i].params, source_.catalog().groups[i].params) << i;
      }
    }
  }
}

TEST_F(MadeChain, MastersAreCalledWhatTheirOptimizerCallsThem) {
  EXPECT_EQ(key("muon0", "master"), "chained_0.optimizer.state.fp32_param.muon0");
  EXPECT_EQ(key("adamw1", "master"), "chained_1.optimizer.state.param.adamw1");
  // A run before 0.18, or without the layout: the layer-wise optimizer has everything.
  const Value metadata = Value::of_dict({{"chained_optim_avoid_prefix", Value::of_bool(true)}});
  source_.catalog().values.push_back({"content_metadata", {}, metadata});
  EXPECT_EQ(key("adamw1", "master"), "optimizer.state.fp32_param.adamw1");
}

// By its states a parameter that is in no group is still the right optimizer's.
TEST_F(MadeChain, AParameterInNoGroupIsTheOptimizersThatKeepsItsStates) {
  source_.catalog().groups[2].params.clear();
  EXPECT_EQ(key("adamw1", "exp_avg"), "chained_1.optimizer.state.exp_avg.adamw1");
  EXPECT_EQ(key("adamw1", "master"), "chained_1.optimizer.state.param.adamw1");
}

}  // namespace
}  // namespace ebb
