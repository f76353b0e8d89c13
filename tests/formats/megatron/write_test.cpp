// What is written as Megatron, read again: its own fixtures cut any way, and DeepSpeed's content.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "ebb/formats/catalog/with_catalog.h"
#include "ebb/formats/core/float_cast.h"
#include "ebb/formats/describe.h"
#include "ebb/formats/megatron/megatron.h"
#include "ebb/formats/megatron/names.h"
#include "tests/formats/megatron/support.h"
#include "tests/formats/megatron/written.h"
#include "tests/support/emit_in_memory.h"
#include "tests/support/expected.h"
#include "tests/support/source_tree.h"

namespace ebb {

namespace {

using megatron_test::cases;
using megatron_test::Content;
using megatron_test::content_of;
using megatron_test::describe_case;
using megatron_test::find;
using megatron_test::values_of;
using megatron_test::written_as;

// Buffers as parameters: Megatron has no word for them.
Content without_buffers(const Content& content) {
  Content out;
  for (const auto& [key, what] : content)
    out[key.ends_with(" buffer") ? key.substr(0, key.size() - 6) + "param" : key] = what;
  return out;
}

std::multiset<std::string> set_of(const std::vector<std::string>& names) {
  return {names.begin(), names.end()};
}

Result<std::unique_ptr<Checkpoint>> describe_deepspeed(const std::string& name) {
  return formats::describe(
      test_support::load_tree(std::filesystem::path(EBB_FIXTURES) / "deepspeed" / name / "data"));
}

class MegatronWriter : public testing::TestWithParam<std::string> {};

// Tensor parallel, padded vocabulary, expert axes, uneven shards, HSDP, flat boxes and buckets:
// whatever a fixture has, cut every way.
TEST_P(MegatronWriter, RoundTripKeepsEveryTensorValueAndGroup) {
  const auto source = describe_case(GetParam());
  ASSERT_TRUE(source.has_value()) << source.error().message;
  const Catalog& catalog = (*source)->catalog();
  for (const Policy policy : {Policy::rows, Policy::zero3, Policy::zero12, Policy::layer_wise}) {
    for (const std::uint32_t world : {1u, 5u}) {
      const auto out = written_as(**source, catalog.format, world, policy);
      ASSERT_TRUE(out.has_value()) << out.error().message;
      EXPECT_TRUE(out->plan.dropped.empty()) << out->plan.dropped.front();
      EXPECT_TRUE(out->plan.notes.empty());
      EXPECT_EQ(content_of(*out->checkpoint), content_of(**source));
      EXPECT_EQ(values_of(out->checkpoint->catalog()), values_of(catalog));
      EXPECT_EQ(out->checkpoint->catalog().step, catalog.step);
      EXPECT_EQ(out->checkpoint->catalog().param_steps, catalog.param_steps);
      EXPECT_TRUE(megatron_problems(out->tree, out->checkpoint->catalog()).empty());
      ASSERT_EQ(out->checkpoint->catalog().groups.size(), catalog.groups.size());
      for (std::size_t i = 0; i < catalog.groups.size(); ++i)
        EXPECT_EQ(out->checkpoint->catalog().groups[i].params, catalog.groups[i].params);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, MegatronWriter, testing::ValuesIn(cases()),
                         [](const auto& one_case) { return one_case.param; });

TEST(MegatronWritten, LayerWiseStateIsWholeInItsOwnersFile) {
  const auto source = describe_case("muon_layerwise_tp2_dp2");
  ASSERT_TRUE(source.has_value());
  const auto out = written_as(**source, "megatron", 4, Policy::layer_wise);
  ASSERT_TRUE(out.has_value()) << out.error().message;
  std::set<std::uint32_t> owners;
  for (const TensorEntry& tensor : out->checkpoint->catalog().tensors) {
    ASSERT_EQ(tensor.chunks.size(), 1u) << tensor.name;
    owners.insert(index_of(tensor.chunks[0].holder));
  }
  EXPECT_EQ(owners.size(), 4u);
}

// A conversion keeps the keys; by way of a format without them, newer jobs find theirs.
TEST(MegatronWritten, FlatBoxesAreOfTheTensorsOwnShape) {
  const auto source = describe_case("legacy012_flattened_tp2_dp2");
  ASSERT_TRUE(source.has_value());
  const auto same = written_as(**source, "megatron");
  ASSERT_TRUE(same.has_value()) << same.error().message;
  for (const TensorEntry& tensor : same->checkpoint->catalog().tensors)
    for (const Chunk& chunk : tensor.chunks)
      EXPECT_EQ(chunk.box.extent.size(), tensor.shape.size()) << tensor.name;
  const auto dcp = written_as(**source, "dcp");
  ASSERT_TRUE(dcp.has_value()) << dcp.error().message;
  const auto anew = written_as(*dcp->checkpoint, "megatron");
  ASSERT_TRUE(anew.has_value()) << anew.error().message;
  EXPECT_EQ(content_of(*anew->checkpoint), content_of(**source));

  const auto rules = formats::megatron_resume();
  const auto before = resume_answer(rules, {(*source)->catalog(), 3});
  EXPECT_FALSE(before.resumable);
  EXPECT_EQ(before.through, "dcp");
  EXPECT_EQ(before.to, "megatron");
  EXPECT_FALSE(resume_answer(rules, {same->checkpoint->catalog(), 3}).resumable);
  EXPECT_TRUE(resume_answer(rules, {anew->checkpoint->catalog(), 3}).resumable);
}

TEST(MegatronWritten, RanksWithoutPiecesHaveNoFile) {
  const auto source = describe_case("api_uneven_prepend2_w3");
  ASSERT_TRUE(source.has_value());
  const auto out = written_as(**source, "megatron", 16, Policy::layer_wise);
  ASSERT_TRUE(out.has_value()) << out.error().message;
  for (const OutputFile& file : out->plan.files) EXPECT_NE(file.size, 0u) << file.name;
  EXPECT_EQ(out->plan.commit_files.back().name, "latest_checkpointed_iteration.txt");
}

class FromDeepSpeed : public testing::TestWithParam<const char*> {};

TEST_P(FromDeepSpeed, EveryStateAndStepIsThereAndComesBack) {
  const auto source = describe_deepspeed(GetParam());
  ASSERT_TRUE(source.has_value()) << source.error().message;
  const Content wanted = content_of(**source);
  const auto there = written_as(**source, "megatron");
  ASSERT_TRUE(there.has_value()) << there.error().message;
  EXPECT_TRUE(there->plan.dropped.empty()) << there->plan.dropped.front();
  Content found = content_of(*there->checkpoint);
  for (const auto& [key, what] : without_buffers(wanted)) {
    EXPECT_EQ(found[key], what) << key;
  }
  const auto back = written_as(
      *there->checkpoint, "deepspeed", 2,
      (*source)->catalog().partition.starts_with("zero3") ? Policy::zero3 : Policy::zero12);
  ASSERT_TRUE(back.has_value()) << back.error().message;
  const Catalog& catalog = back->checkpoint->catalog();
  EXPECT_EQ(without_buffers(content_of(*back->checkpoint)), without_buffers(wanted));
  EXPECT_EQ(catalog.step, (*source)->catalog().step);
  EXPECT_EQ(catalog.param_steps, (*source)->catalog().param_steps);
  ASSERT_EQ(catalog.groups.size(), (*source)->catalog().groups.size());
  for (std::size_t i = 0; i < catalog.groups.size(); ++i) {
    EXPECT_EQ(catalog.groups[i].optimizer, (*source)->catalog().groups[i].optimizer);
    EXPECT_EQ(set_of(catalog.groups[i].params), set_of((*source)->catalog().groups[i].params));
    for (const auto& setting : (*source)->catalog().groups[i].settings) {
      const auto& all = catalog.groups[i].settings;
      EXPECT_TRUE(std::ranges::any_of(all, [&](const auto& other) {
        return other.first == setting.first && to_json(other.second) == to_json(setting.second);
      })) << setting.first;
    }
  }
}

TEST_P(FromDeepSpeed, TheModelInFsdpDtensorIsItsMasterWeights) {
  const auto source = describe_deepspeed(GetParam());
  ASSERT_TRUE(source.has_value()) << source.error().message;
  const auto there = written_as(**source, "megatron-fsdp");
  ASSERT_TRUE(there.has_value()) << there.error().message;
  EXPECT_TRUE(there->plan.dropped.empty()) << there->plan.dropped.front();
  Content found = content_of(*there->checkpoint);
  for (const auto& [key, what] : content_of(**source)) {
    if (key.ends_with(" master")) {
      EXPECT_EQ(found[key.substr(0, key.size() - 6) + "param"], what) << key;
    } else if (!key.ends_with(" param") && !key.ends_with(" buffer")) {
      EXPECT_EQ(found[key], what) << key;
    }
  }
  // The counters are tensors there.
  for (const auto& [name, steps] : (*source)->catalog().param_steps)
    EXPECT_NE(find(there->checkpoint->catalog(), name, "step"), nullptr) << name;
}

INSTANTIATE_TEST_SUITE_P(Cases, FromDeepSpeed,
                         testing::Values("z1_adamw_bf16_w2", "z1_muon_bf16_w3", "z2_muon_bf16_w2",
                                         "z2_adamw_fp16_w2", "z3_adamw_bf16_w4", "z3_muon_bf16_w4",
                                         "z3_muon_fp16_resume_w2"),
                         [](const auto& one_case) { return std::string(one_case.param); });

// ZeRO stage 3 stores no 16-bit weights; Megatron loads its model from nothing else.
TEST(MegatronWritten, ModelWeightsThatAreMissingAreTheMastersRounded) {
  const auto source = describe_deepspeed("z3_muon_bf16_w4");
  ASSERT_TRUE(source.has_value());
  const auto out = written_as(**source, "megatron");
  ASSERT_TRUE(out.has_value()) << out.error().message;
  ASSERT_EQ(out->plan.notes.size(), 1u);
  EXPECT_EQ(out->plan.notes[0],
            "9 model weights were not in the source: its master weights, rounded to BF16");
  std::size_t rounded = 0;
  for (const TensorEntry& master : out->checkpoint->catalog().tensors) {
    if (master.state != "master") continue;
    const TensorEntry* param = find(out->checkpoint->catalog(), master.name, "param");
    ASSERT_NE(param, nullptr) << master.name;
    ASSERT_EQ(param->dtype, DType::bf16);
    const auto wide = test_support::elements_of(*out->checkpoint, master);
    const auto narrow = test_support::elements_of(*out->checkpoint, *param);
    ByteVector due(narrow->size());
    formats::cast_floats(master.dtype, *wide, DType::bf16, due);
    EXPECT_EQ(*narrow, due) << master.name;
    ++rounded;
  }
  EXPECT_EQ(rounded, 9u);
}

// A case whose run had other arguments, by way of fsdp_dtensor.
struct ThereAndBack {
  std::unique_ptr<Checkpoint> source;
  megatron_test::Written back;
};
ThereAndBack there_and_back(const char* name, const std::function<void(Value& args)>& change) {
  auto stored = describe_case(name);
  EBB_CHECK(stored.has_value());
  Catalog content = (*stored)->catalog();
  const auto args = std::ranges::find(content.values, "args", &ValueEntry::key);
  EBB_CHECK(args != content.values.end());
  change(args->value.items.at(1));
  auto source = with_catalog(std::move(*stored), std::move(content));
  const auto fsdp = written_as(*source, "megatron-fsdp");
  EBB_CHECK(fsdp.has_value());
  auto back = written_as(*fsdp->checkpoint, "megatron");
  EBB_CHECK(back.has_value());
  return {std::move(source), std::move(*back)};
}

// The arguments of the run say that it computes in bf16; a run in fp32 has no masters.
TEST(MegatronWritten, ARunIn16BitsGetsItsMastersBackFromFsdpDtensor) {
  for (const bool bf16 : {true, false}) {
    const auto [source, back] = there_and_back(
        "muon_distopt_tp2_dp2", [&](Value& args) { args.add("bf16", Value::of_bool(bf16)); });
    const bool same = content_of(*back.checkpoint) == content_of(*source);
    EXPECT_EQ(same, bf16);
    ASSERT_EQ(back.plan.notes.size(), 1u);
    EXPECT_EQ(back.plan.notes[0],
              bf16 ? "17 weights in fp32 of a run in BF16: they are its master weights, and "
                     "rounded its model weights"
                   : "nothing says what the run computes in: written as one of 32 bits, which has "
                     "no master weights; a job with --bf16 or --fp16 asks for them");
    const Value* chain = formats::value_at(back.checkpoint->catalog(), {"optimizer"});
    ASSERT_NE(chain, nullptr);
    const Value& muon = chain->entries.front().second;
    EXPECT_EQ(muon.find("optimizer") != nullptr, bf16) << "Megatron's own wraps what has masters";
    EXPECT_EQ(muon.find("param_groups") != nullptr, !bf16);
  }
}

// The distributed optimizer has masters in 32 bits, too.
TEST(MegatronWritten, ADistributedOptimizerGetsItsMastersBackFromFsdpDtensor) {
  for (const bool distributed : {true, false}) {
    const auto change = [&](Value& args) {
      std::erase_if(args.entries, [](const auto& entry) {
        return entry.first.text == "bf16" || entry.first.text == "use_distributed_optimizer";
      });
      args.add("use_distributed_optimizer", Value::of_bool(distributed));
    };
    const auto [source, back] = there_and_back("adam_fully_reshardable_tp2_dp2", change);
    const auto masters_in = [](const Checkpoint& checkpoint) {
      return std::ranges::count(checkpoint.catalog().tensors, "master", &TensorEntry::state);
    };
    EXPECT_EQ(masters_in(*back.checkpoint), distributed ? masters_in(*source) : 0);
  }
}

// A job goes by what the metadata says of its keys.
TEST(MegatronWritten, LayersApartAreSaidToBe) {
  for (const bool apart : {true, false}) {
    auto stored = describe_deepspeed("z2_adamw_fp16_w2");
    ASSERT_TRUE(stored.has_value());
    Catalog content = (*stored)->catalog();
    for (TensorEntry& tensor : content.tensors)
      tensor.name = (apart ? "decoder.layers.0." : "decoder.layers.") + tensor.name;
    for (GroupEntry& group : content.groups)
      for (std::string& name : group.params)
        name = (apart ? "decoder.layers.0." : "decoder.layers.") + name;
    const auto source = with_catalog(std::move(*stored), std::move(content));
    const auto out = written_as(*source, "megatron");
    ASSERT_TRUE(out.has_value()) << out.error().message;
    const Value* metadata = formats::value_at(out->checkpoint->catalog(), {"content_metadata"});
    ASSERT_NE(metadata, nullptr);
    EXPECT_EQ(metadata->find("singleton_local_shards") != nullptr, apart);
  }
}

// Megatron keeps it with the optimizer; each of chained ones has it.
TEST(MegatronWritten, TheLossScaleIsTheOptimizers) {
  const auto source = describe_deepspeed("z2_adamw_fp16_w2");
  ASSERT_TRUE(source.has_value());
  const auto out = written_as(**source, "megatron");
  ASSERT_TRUE(out.has_value()) << out.error().message;
  const Catalog& catalog = out->checkpoint->catalog();
  const Value* scaler = formats::value_at(catalog, {"optimizer", "grad_scaler"});
  ASSERT_NE(scaler, nullptr);
  const Value* known = formats::value_at((*source)->catalog(), {"loss_scaler", "cur_scale"});
  ASSERT_NE(known, nullptr);
  EXPECT_EQ(formats::load_le<float>(scaler->find("scale")->raw), known->real);
  EXPECT_EQ(values_of(catalog).at("loss_scaler"),
            to_json(*formats::value_at((*source)->catalog(), {"loss_scaler"})));
  const auto back = written_as(*out->checkpoint, "deepspeed", 2);
  ASSERT_TRUE(back.has_value()) << back.error().message;
  EXPECT_TRUE(back->plan.dropped.empty()) << back->plan.dropped.front();
}

TEST(MegatronWritten, PartsOfAShardedObjectAreSpokenOf) {
  const auto source = describe_case("legacy012_flattened_tp2_dp2");
  ASSERT_TRUE(source) << source.error().message;
  const auto torch = written_as(**source, "torch");
  ASSERT_TRUE(torch) << torch.error().message;
  const auto back = written_as(*torch->checkpoint, "megatron");
  ASSERT_TRUE(back) << back.error().message;
  const std::string part = "rng_state/shard_0.0_1.2.0.0.torch_rng_state";
  const auto says = [&](const std::string& line) {
    return std::ranges::count(back->plan.dropped,
                              line + ": " + std::string(formats::megatron::kObjectPart));
  };
  EXPECT_EQ(says("tensor \"" + part + "\""), 1);
  EXPECT_EQ(says("value \"rng_state/shard_0.0_1.2.0.0.random_rng_state.0\""), 1);
  EXPECT_EQ(find(back->checkpoint->catalog(), part, "param"), nullptr);
  EXPECT_EQ(back->plan.omitted.size(), 2u);
}

TEST(MegatronWritten, MuonIsTheFirstOfChainedOptimizers) {
  const auto source = describe_deepspeed("z2_muon_bf16_w2");
  ASSERT_TRUE(source.has_value());
  const auto out = written_as(**source, "megatron");
  ASSERT_TRUE(out.has_value()) << out.error().message;
  for (const TensorEntry& tensor : out->checkpoint->catalog().tensors) {
    if (tensor.state == "momentum_buffer") {
      EXPECT_EQ(*tensor.key, "chained_0.optimizer.state.momentum_buffer." + tensor.name);
    } else if (tensor.state == "exp_avg") {
      EXPECT_EQ(*tensor.key, "chained_1.optimizer.state.exp_avg." + tensor.name);
    }
  }
  const Value* one = formats::value_at(out->checkpoint->catalog(), {"optimizer"});
  ASSERT_NE(one, nullptr);
  ASSERT_EQ(one->entries.size(), 2u);
  const Value* adam = one->entries[1].second.find("optimizer");
  ASSERT_NE(adam, nullptr);
  for (const Value& group : adam->find("param_groups")->items)
    EXPECT_EQ(group.find("step")->integer, 3);
}

// Megatron's word for it is "adam", with a setting beside it.
TEST(MegatronWritten, AdamWIsTheSameOptimizerInFsdpDtensor) {
  const auto source = describe_case("adam_fully_reshardable_tp2_dp2");
  ASSERT_TRUE(source.has_value());
  const auto out = written_as(**source, "megatron-fsdp");
  ASSERT_TRUE(out.has_value()) << out.error().message;
  ASSERT_EQ(out->checkpoint->catalog().groups.size(), 2u);
  for (const GroupEntry& group : out->checkpoint->catalog().groups)
    EXPECT_EQ(group.optimizer, "adamw");
}

using Journey = std::tuple<const char*, const char*>;  // fixture, format between
class MegatronGroupsElsewhere : public testing::TestWithParam<Journey> {};

// Megatron's job finds its groups by these settings: after a journey they are what they were.
TEST_P(MegatronGroupsElsewhere, AreFoundAgain) {
  const auto source = describe_case(std::get<0>(GetParam()));
  ASSERT_TRUE(source.has_value());
  const auto there = written_as(**source, std::get<1>(GetParam()), 2);
  ASSERT_TRUE(there.has_value()) << there.error().message;
  const auto back = written_as(*there->checkpoint, "megatron");
  ASSERT_TRUE(back.has_value()) << back.error().message;
  const auto identities = [](const Checkpoint& checkpoint) {
    const std::set<std::string> kKeys = {
        "end_wd",         "max_lr",  "min_lr",  "optimizer",
        "start_wd",       "wd_mult", "lr_mult", "is_expert_parallel",
        "is_decoupled_lr"};
    std::vector<std::map<std::string, std::string>> out;
    for (const GroupEntry& group : checkpoint.catalog().groups) {
      auto& identity = out.emplace_back();
      for (const auto& [name, value] : group.settings)
        if (kKeys.contains(name)) identity[name] = to_json(value);
    }
    return out;
  };
  EXPECT_EQ(identities(*back->checkpoint), identities(**source));
  const auto notes =
      resume_answer(formats::megatron_resume(), {back->checkpoint->catalog(), 2}).notes;
  EXPECT_TRUE(std::ranges::none_of(notes, [](const std::string& note) {
    return note.find("never were Megatron's") != std::string::npos;
  }));
}

TEST(MegatronWritten, GroupsThatNeverWereMegatronsAreSpokenOf) {
  const auto source = describe_deepspeed("z2_adamw_fp16_w2");
  ASSERT_TRUE(source.has_value());
  const auto out = written_as(**source, "megatron");
  ASSERT_TRUE(out.has_value()) << out.error().message;
  const auto notes =
      resume_answer(formats::megatron_resume(), {out->checkpoint->catalog(), 2}).notes;
  EXPECT_TRUE(std::ranges::any_of(notes, [](const std::string& note) {
    return note.find("never were Megatron's") != std::string::npos;
  }));
}

INSTANTIATE_TEST_SUITE_P(
    Cases, MegatronGroupsElsewhere,
    testing::Combine(testing::Values("muon_layerwise_tp2_dp2", "adam_fully_reshardable_tp2_dp2",
                                     "flattened015_tied_dp3"),
                     testing::Values("deepspeed", "dcp", "ebb", "megatron-fsdp")));

// The wrapper's "module." is in the model's keys only.
TEST(MegatronFsdpLeaves, WithOneNameForAParameterAndItsStates) {
  const auto source = describe_case("fsdp_uneven_w3_muon");
  ASSERT_TRUE(source.has_value());
  const auto out = written_as(**source, "deepspeed", 2);
  ASSERT_TRUE(out.has_value()) << out.error().message;
  EXPECT_TRUE(out->plan.dropped.empty()) << out->plan.dropped.front();
  const TensorEntry* momentum = find(out->checkpoint->catalog(), "tiny", "momentum_buffer");
  EXPECT_NE(momentum, nullptr);
  EXPECT_EQ(find(out->checkpoint->catalog(), "module.tiny", "param"), nullptr);
}

TEST(MegatronWritten, FlatBucketsAreRefusedByEveryOtherFormat) {
  const auto source = describe_case("adam_dp_reshardable_dp3");
  ASSERT_TRUE(source.has_value());
  for (const char* format : {"megatron-fsdp", "dcp", "deepspeed", "safetensors"}) {
    const auto out = written_as(**source, format);
    ASSERT_FALSE(out.has_value()) << format;
    EXPECT_NE(out.error().message.find("flat bucket of dp_reshardable"), std::string::npos);
  }
}

}  // namespace

}  // namespace ebb
