// What the contents of torch's state dicts mean, whatever they are called, nested or flattened.
#include <gtest/gtest.h>

#include "ebb/formats/state_dict/groups.h"
#include "ebb/formats/state_dict/names.h"
#include "ebb/formats/state_dict/state_dict.h"
#include "tests/formats/dcp/state_dicts.h"

namespace ebb {

namespace {

using formats::PartsSaid;
using formats::torch_groups;
using state_dicts::add_group;
using state_dicts::add_value;
using state_dicts::named;
using state_dicts::Names;
using state_dicts::names;
using state_dicts::state_dict;

ValueEntry value(const std::string& key, Value content) {
  ValueEntry entry;
  entry.key = key;
  entry.value = std::move(content);
  return entry;
}

TEST(StateDictGroups, FlattenedSettingsThatAreEqualMakeOneGroup) {
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

TEST(StateDictGroups, GroupsAreTheSameInWhicheverWayTheyAreSpelled) {
  Value params = Value::of_list({Value::of_string("w")});
  const Value group = Value::of_dict({{"lr", Value::of_real(0.1)}, {"params", params}});
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

TEST(StateDictGroups, ASettingMayHaveDotsWhereTheNestingTellsItFromTheRest) {
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

TEST(StateDictParts, AreFoundUnderAnyWordByWhatLiesThere) {
  Catalog catalog = state_dict({{{"app", "net", "a.w"}, {3}},
                                {{"app", "net", "seen"}, {}},
                                {{"app", "sgd", "state", "a.w", "momentum_buffer"}, {3}},
                                {{"app", "ema", "a.x"}, {3}},
                                {{"rng"}, {4}}});
  add_group(catalog, {"app", "sgd"}, names({"a.w"}));
  add_value(catalog, {"app", "step"}, Value::of_int(7));
  EXPECT_EQ(named(catalog), (Names{{"a.w", "param"},
                                   {"seen", "param"},
                                   {"a.w", "momentum_buffer"},
                                   {"app.ema.a.x", "tensor"},
                                   {"rng", "tensor"}}));
  EXPECT_EQ(catalog.step, 7);  // beside the model
  EXPECT_TRUE(catalog.notes.empty()) << catalog.notes.front();
  ASSERT_EQ(catalog.groups.size(), 1u);
  for (const ValueEntry& entry : catalog.values) EXPECT_TRUE(entry.echoed) << entry.key;
}

// As torchtitan lays out what it saves.
TEST(StateDictParts, AModelMayLieAtTheTopBesideAFlattenedOptimizer) {
  Catalog catalog = state_dict({{{"layers.0.w"}, {3}},
                                {{"ssm.state.a.b"}, {3}},
                                {{"optimizer.state.layers.0.w.exp_avg"}, {3}},
                                {{"optimizer.state.ssm.state.a.b.exp_avg"}, {3}},
                                {{"train_state", "step"}, {}}});
  add_value(catalog, {"optimizer.param_groups.layers.0.w.lr"}, Value::of_real(0.1));
  add_value(catalog, {"optimizer.param_groups.ssm.state.a.b.lr"}, Value::of_real(0.1));
  EXPECT_EQ(named(catalog), (Names{{"layers.0.w", "param"},
                                   {"ssm.state.a.b", "param"},
                                   {"layers.0.w", "exp_avg"},
                                   {"ssm.state.a.b", "exp_avg"},
                                   {"train_state.step", "tensor"}}));
  ASSERT_EQ(catalog.groups.size(), 1u);
  EXPECT_EQ(catalog.groups[0].params.size(), 2u);
}

TEST(StateDictParts, OfTwoModelsWithOneNameSayWhich) {
  Catalog catalog = state_dict({{{"gen", "w"}, {3}},
                                {{"gen", "g"}, {3}},
                                {{"dis", "w"}, {2}},
                                {{"dis", "d"}, {2}},
                                {{"gen_opt", "state", "w", "exp_avg"}, {3}},
                                {{"dis_opt", "state", "w", "exp_avg"}, {2}}});
  add_group(catalog, {"gen_opt"}, names({"w", "g"}));
  add_group(catalog, {"dis_opt"}, names({"w", "d"}));
  EXPECT_EQ(named(catalog), (Names{{"gen.w", "param"},
                                   {"gen.g", "param"},
                                   {"dis.w", "param"},
                                   {"dis.d", "param"},
                                   {"gen.w", "exp_avg"},
                                   {"dis.w", "exp_avg"}}));
  EXPECT_EQ(catalog.groups[1].params, (std::vector<std::string>{"dis.w", "dis.d"}));
}

TEST(StateDictParts, ThatAreNotClearAreNotedUntilSomebodySaysThem) {
  Catalog catalog = state_dict({{{"a", "w"}, {3}},
                                {{"b", "w"}, {3}},
                                {{"opt", "state", "w", "exp_avg"}, {3}},
                                {{"more", "state", "w", "sum"}, {3}}});
  add_group(catalog, {"opt"}, names({"w"}));
  EXPECT_EQ(
      named(catalog),
      (Names{
          {"a.w", "tensor"}, {"b.w", "tensor"}, {"w", "exp_avg"}, {"more.state.w.sum", "tensor"}}));
  ASSERT_EQ(catalog.notes.size(), 2u);
  EXPECT_NE(catalog.notes[0].find("--optimizer more"), std::string::npos) << catalog.notes[0];
  EXPECT_NE(catalog.notes[1].find("--model KEY"), std::string::npos) << catalog.notes[1];
  EXPECT_EQ(named(catalog, {{"b"}, {"opt", "more"}}),
            (Names{{"a.w", "tensor"}, {"w", "param"}, {"w", "exp_avg"}, {"w", "sum"}}));
  EXPECT_TRUE(catalog.notes.empty()) << catalog.notes.front();
  for (const PartsSaid& wrong : {PartsSaid{{"c"}, {}}, PartsSaid{{}, {"a"}}}) {
    const auto refused = formats::name_contents(catalog, wrong);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::usage);
  }
}

// As Composer saves: the word "state" at the top is the trainer's.
TEST(StateDictParts, AStateAtTheTopIsAnOptimizersOnlyWhereItLooksLikeOne) {
  Catalog composer =
      state_dict({{{"state", "model", "net.w"}, {3}},
                  {{"state", "model", "net.b"}, {2}},
                  {{"state", "optimizers", "Adam", "state", "net.w", "exp_avg"}, {3}},
                  {{"state", "optimizers", "Adam", "state", "net.w", "step"}, {}},
                  {{"state", "rng", 0, "torch"}, {9}}});
  Catalog model_alone = composer;
  model_alone.tensors.erase(model_alone.tensors.begin() + 2, model_alone.tensors.begin() + 4);
  add_group(composer, {"state", "optimizers", "Adam"}, names({"net.w", "net.b"}));
  EXPECT_EQ(named(composer), (Names{{"net.w", "param"},
                                    {"net.b", "param"},
                                    {"net.w", "exp_avg"},
                                    {"net.w", "step"},
                                    {"state.rng.0.torch", "tensor"}}));
  EXPECT_TRUE(composer.notes.empty()) << composer.notes.front();
  EXPECT_EQ(named(model_alone),
            (Names{{"net.w", "param"}, {"net.b", "param"}, {"state.rng.0.torch", "tensor"}}));
  // Whatever the trainer calls its parts, nothing becomes a state in silence.
  Catalog words = state_dict({{{"state", "net", "a.w"}, {3}},
                              {{"state", "net", "b.w"}, {2}},
                              {{"state", "net", "c.w"}, {4}},
                              {{"state", "clock", "seen"}, {}}});
  for (const auto& [name, state] : named(words)) EXPECT_TRUE(state == "tensor") << name;
  EXPECT_FALSE(words.notes.empty());
  // optimizer.state_dict() itself, without its groups: numbers, or names that share their states.
  Catalog numbers = state_dict({{{"state", 0, "exp_avg"}, {3}}, {{"state", 1, "sum"}, {2}}});
  EXPECT_EQ(named(numbers), (Names{{"0", "exp_avg"}, {"1", "sum"}}));
  Catalog shared = state_dict({{{"state", "a.w", "exp_avg"}, {3}},
                               {{"state", "a.w", "step"}, {}},
                               {{"state", "b.w", "exp_avg"}, {2}},
                               {{"state", "b.w", "step"}, {}}});
  EXPECT_EQ(named(shared),
            (Names{{"a.w", "exp_avg"}, {"a.w", "step"}, {"b.w", "exp_avg"}, {"b.w", "step"}}));
}

TEST(StateDictParts, ComeBackAsAValueThatOtherFormatsKeep) {
  Catalog catalog =
      state_dict({{{"app", "net", "w"}, {3}}, {{"app", "opt", "state.w.exp_avg"}, {3}}});
  add_value(catalog, {"app", "opt", "param_groups.w.lr"}, Value::of_real(0.1));
  add_value(catalog, {"app", "global_step"}, Value::of_int(7));
  named(catalog);
  Catalog elsewhere;
  elsewhere.parts = catalog.parts;
  formats::put_parts(elsewhere, formats::StepCounters::tensors);
  elsewhere.parts = {};
  ASSERT_EQ(elsewhere.values.size(), 1u);
  elsewhere.step = 7;
  elsewhere.groups = catalog.groups;
  for (const auto& tensor : catalog.tensors)
    elsewhere.tensors.push_back(
        {std::nullopt, {}, tensor.name, tensor.state, {}, tensor.shape, {}});
  formats::respell_as_state_dict(elsewhere);
  for (std::size_t i = 0; i < catalog.tensors.size(); ++i) {
    EXPECT_EQ(elsewhere.tensors[i].key, catalog.tensors[i].key);
    EXPECT_EQ(elsewhere.tensors[i].path, catalog.tensors[i].path);
    EXPECT_EQ(elsewhere.tensors[i].name, catalog.tensors[i].name);
  }
  std::vector<std::string> keys;
  for (const auto& value : formats::state_dict_of(elsewhere).values)
    keys.push_back(value.place.key);
  EXPECT_EQ(keys, (std::vector<std::string>{"app.global_step", "app.opt.param_groups.w.lr"}));
}

// A name that would be found to be another one under its key is refused before anything is written.
TEST(StateDictParts, AreNotOverwrittenByANewName) {
  Catalog catalog = state_dict({{{"w"}, {3}}, {{"optimizer.state.w.exp_avg"}, {3}}});
  add_value(catalog, {"optimizer.param_groups.w.lr"}, Value::of_real(0.1));
  named(catalog);
  catalog.tensors[0].name = "optimizer.state.w.exp_avg_sq";
  catalog.tensors[0].key.reset();
  catalog.tensors[0].path.clear();
  const auto refused = formats::check_reads_back(catalog, formats::state_dict_of(catalog));
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("which is read as \"w\" (exp_avg_sq)"), std::string::npos)
      << refused.error().message;
}

TEST(StateDictParts, ThatNobodyKnowsBecomeNoParameters) {
  Catalog unclear = state_dict({{{"a", "w"}, {3}}, {{"b", "w"}, {3}}});
  named(unclear);
  const auto refused = formats::check_understood(unclear, unclear);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().hint.find("--model KEY"), std::string::npos);
  Catalog numbered = state_dict(
      {{{"model", "a"}, {3}}, {{"model", "b"}, {3}}, {{"opt", "state", 0, "exp_avg"}, {3}}});
  add_group(numbered, {"opt"}, Value::of_list({Value::of_int(0)}));
  EXPECT_EQ(named(numbered), (Names{{"a", "param"}, {"b", "param"}, {"opt.0", "exp_avg"}}));
  const auto number = formats::check_named(numbered, numbered);
  ASSERT_FALSE(number);
  EXPECT_NE(number.error().hint.find("--names FILE"), std::string::npos);
  Catalog renamed = numbered;
  renamed.tensors[2].name = "b";
  EXPECT_TRUE(formats::check_named(numbered, renamed));
}

// TransformerEngine's: a tensor of bytes, empty where nothing is scaled.
TEST(StateDictNames, OfAModulesOwnStateAreNoParameters) {
  Catalog catalog = state_dict({{{"model", "a.weight"}, {3}},
                                {{"model", "a._extra_state"}, {487}},
                                {{"model", "_extra_state"}, {0}},
                                {{"model", "not_extra_state"}, {2}}});
  EXPECT_EQ(named(catalog), (Names{{"a.weight", "param"},
                                   {"a._extra_state", "buffer"},
                                   {"_extra_state", "buffer"},
                                   {"not_extra_state", "param"}}));
}

TEST(StateDictNames, StayNumbersWhereSeveralParametersFit) {
  Catalog catalog = state_dict({{{"model", "a"}, {3}},
                                {{"model", "b"}, {3}},
                                {{"opt", "state", 0, "momentum_buffer"}, {3}}});
  add_group(catalog, {"opt"}, Value::of_list({Value::of_int(0)}));
  EXPECT_EQ(named(catalog), (Names{{"a", "param"}, {"b", "param"}, {"opt.0", "momentum_buffer"}}));
  ASSERT_EQ(catalog.notes.size(), 1u);
  EXPECT_NE(catalog.notes[0].find("--names FILE"), std::string::npos);
  EXPECT_NE(catalog.notes[0].find("2 are alike, [3] (a, b)"), std::string::npos)
      << catalog.notes[0];
  // torch 2.6 and newer can say it.
  add_value(catalog, {"opt", "param_groups", 0, "param_names"}, names({"b"}));
  EXPECT_EQ(named(catalog)[2], (Names::value_type{"b", "momentum_buffer"}));
  EXPECT_EQ(catalog.groups[0].params, std::vector<std::string>{"b"});
  EXPECT_EQ(catalog.groups[0].settings.size(), 1u);  // lr alone
  EXPECT_TRUE(catalog.notes.empty());
}

TEST(StateDictNames, OfTensorsAloneAreTheirKeys) {
  Catalog bare = state_dict({{{"a.w"}, {3}}, {{"b"}, {}}});
  EXPECT_EQ(named(bare), (Names{{"a.w", "param"}, {"b", "param"}}));
  // Of two models the one that lies at the top is it.
  Catalog twice = state_dict({{{"model", "a"}, {3}}, {{"ema", "model", "a"}, {3}}});
  EXPECT_EQ(named(twice), (Names{{"a", "param"}, {"ema.model.a", "tensor"}}));
}

}  // namespace

}  // namespace ebb
