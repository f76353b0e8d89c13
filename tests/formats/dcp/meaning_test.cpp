// What torch's keys mean, nested or flattened.
#include <gtest/gtest.h>

#include <filesystem>

#include "ebb/formats/dcp/dcp.h"
#include "ebb/formats/state_dict/meaning.h"
#include "tests/support/source_tree.h"

namespace ebb {

namespace {

using formats::torch_groups;
using formats::torch_identity;
using formats::Value;
using formats::ValueEntry;
using Identity = std::pair<std::string, std::string>;

TEST(DcpMeaning, AKeyTellsParameterAndState) {
  EXPECT_EQ(torch_identity("model.blk.0.w"), Identity("blk.0.w", "param"));
  EXPECT_EQ(torch_identity("optim.state.blk.0.w.exp_avg"), Identity("blk.0.w", "exp_avg"));
  EXPECT_EQ(torch_identity("optimizer.1.state.w.momentum_buffer"),
            Identity("w", "momentum_buffer"));
  EXPECT_EQ(torch_identity("state.0.exp_avg"), Identity("0", "exp_avg"));
}

TEST(DcpMeaning, AKeyOfNoConventionIsItsOwnName) {
  for (const char* key :
       {"w", "optim.state", "optim.state.w", "app.optim.state.w.exp_avg", "optim.w.lr"})
    EXPECT_EQ(torch_identity(key), Identity(key, "tensor"));
  EXPECT_EQ(torch_identity("model.optim.state.w.x"), Identity("optim.state.w.x", "param"));
}

ValueEntry value(const std::string& key, Value content) {
  ValueEntry entry;
  entry.key = key;
  entry.value = std::move(content);
  return entry;
}

TEST(DcpMeaning, FlattenedSettingsThatAreEqualMakeOneGroup) {
  const auto groups = torch_groups({
      value("optim.param_groups.a.w.lr", Value::of_real(0.02)),
      value("optim.param_groups.b.lr", Value::of_real(0.1)),
      value("optim.param_groups.a.w.ns_steps", Value::of_int(5)),
      value("optim.param_groups.c.w.ns_steps", Value::of_int(5)),
      value("optim.param_groups.c.w.lr", Value::of_real(0.02)),
  });
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].optimizer, "muon");
  EXPECT_EQ(groups[0].params, (std::vector<std::string>{"a.w", "c.w"}));
  EXPECT_EQ(groups[0].settings.size(), 2u);
  EXPECT_EQ(groups[1].params, std::vector<std::string>{"b"});
}

TEST(DcpMeaning, GroupsAreTheSameInWhicheverWayTheyAreSpelled) {
  Value params = Value::of_list({Value::of_string("w")});
  Value group;
  group.kind = Value::Kind::dict;
  group.entries = {{Value::of_string("lr"), Value::of_real(0.1)},
                   {Value::of_string("params"), params}};
  const std::vector<std::vector<ValueEntry>> spellings = {
      {value("optim.param_groups", Value::of_list({group}))},
      {value("optim.param_groups.0.lr", Value::of_real(0.1)),
       value("optim.param_groups.0.params", params)},
      {value("optim.param_groups.w.lr", Value::of_real(0.1))},
  };
  for (const auto& values : spellings) {
    const auto groups = torch_groups(values);
    ASSERT_EQ(groups.size(), 1u) << values.front().key;
    ASSERT_EQ(groups[0].settings.size(), 1u) << values.front().key;
    EXPECT_EQ(groups[0].settings[0].first, "lr");
    EXPECT_EQ(groups[0].params, std::vector<std::string>{"w"});
  }
}

TEST(DcpMeaning, ASettingMayHaveDotsWhereTheNestingTellsItFromTheRest) {
  ValueEntry nested = value("optim.param_groups.0.ns.1", Value::of_real(3.4445));
  nested.path = {"optim", "param_groups", 0, "ns.1"};
  ValueEntry flattened = value("optim.param_groups.0.weight.lr", Value::of_real(0.1));
  flattened.path = {"optim", "param_groups.0.weight.lr"};
  const auto groups = torch_groups({nested, flattened});
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].settings.front().first, "ns.1");
  EXPECT_TRUE(groups[0].params.empty());
  EXPECT_EQ(groups[1].settings.front().first, "lr");
  EXPECT_EQ(groups[1].params, std::vector<std::string>{"0.weight"});
}

TEST(DcpMeaning, ACheckpointWithAFlattenedOptimizerHasStatesAndGroups) {
  const auto checkpoint = formats::describe_dcp(test_support::load_tree(
      std::filesystem::path(EBB_FIXTURES) / "dcp/fsdp2_w4_fewer_rows_flat_optim/data"));
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  const formats::Catalog& catalog = (*checkpoint)->catalog();
  const auto names = formats::dcp_common_names(catalog).tensors;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto& tensor = catalog.tensors[i];
    EXPECT_NE(names[i].second, "tensor") << *tensor.key;
    // To the format they are keys of no convention.
    const bool flattened = tensor.key->starts_with("optim.");
    EXPECT_EQ(tensor.state == "tensor", flattened) << *tensor.key;
  }
  ASSERT_EQ(catalog.groups.size(), 2u);
  EXPECT_EQ(catalog.groups[0].params.size(), 4u);
  EXPECT_EQ(catalog.groups[1].optimizer, "adamw");
  EXPECT_EQ(catalog.groups[1].params.size(), 10u);
  for (const ValueEntry& entry : catalog.values)
    EXPECT_EQ(entry.echoed, entry.key.starts_with("optim.") || entry.key == "step") << entry.key;
}

}  // namespace

}  // namespace ebb
