// What wrappers put into names comes out where that is no guess.
#include "ebb/formats/conversion/wrappers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>

namespace ebb::formats {
namespace {

using Random = std::mt19937_64;
using Names = std::set<std::string>;

constexpr std::array kBare = {"embed.weight", "layers.0.attn.wq.weight", "layers.1.mlp.weight",
                              "layers.1.module.bias", "norm.weight"};
constexpr std::array kFront = {"module.", "_orig_mod.", "_forward_module.",
                               "_fsdp_wrapped_module."};
constexpr std::array kMiddle = {"_checkpoint_wrapped_module.", "_fsdp_wrapped_module.",
                                "_orig_mod."};

Catalog content_of(const std::vector<std::string>& names) {
  Catalog content;
  for (const std::string& name : names) {
    TensorEntry& tensor = content.tensors.emplace_back();
    tensor.name = name;
    tensor.state = "param";
  }
  return content;
}

// As of a checkpoint that is all of it.
std::vector<std::string> unwrap(Wrappers which, const Names& of_optimizers, Catalog& content) {
  ParamNames names{{}, of_optimizers};
  for (const TensorEntry& tensor : content.tensors)
    if (tensor.state == "param") names.of_model.insert(tensor.name);
  return unwrap_names(which, names, content);
}

std::vector<std::string> names_in(const Catalog& content) {
  std::vector<std::string> names;
  for (const TensorEntry& tensor : content.tensors) names.push_back(tensor.name);
  return names;
}

// Behind the second word of half of the names that have three.
std::string wrapped_inside(std::string name, Random& random) {
  const std::size_t second = name.find('.', name.find('.') + 1);
  if (second != std::string::npos && random() % 2 == 0)
    name.insert(second + 1, kMiddle[random() % kMiddle.size()]);
  return name;
}

TEST(Wrappers, ComeOffWhereAllNamesHaveThem) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    Random random(seed);
    std::string front;
    for (auto i = random() % 3; i > 0; --i) front += kFront[random() % kFront.size()];
    std::vector<std::string> names;
    for (const char* bare : kBare) names.push_back(front + wrapped_inside(bare, random));
    Catalog content = content_of(names);
    const bool wrapped = names != std::vector<std::string>(kBare.begin(), kBare.end());
    const auto lines = unwrap(Wrappers::off, {}, content);
    EXPECT_EQ(names_in(content), std::vector<std::string>(kBare.begin(), kBare.end())) << front;
    EXPECT_EQ(lines.size(), wrapped ? 1u : 0u);
    if (wrapped) {
      EXPECT_NE(lines[0].find("--keep-names"), std::string::npos) << lines[0];
    }
  }
}

TEST(Wrappers, InFrontOfSomeNamesComeOffWhereTheOptimizerIsWithout) {
  for (const char* front : kFront)
    for (const bool known : {false, true}) {
      Catalog content = content_of({std::string(front) + "a.w", "b.w"});
      const Names of_optimizer = known ? Names{"a.w", "b.w"} : Names{};
      unwrap(Wrappers::off, of_optimizer, content);
      EXPECT_EQ(content.tensors[0].name, known ? "a.w" : std::string(front) + "a.w");
      EXPECT_EQ(content.tensors[1].name, "b.w");
    }
}

// A part of a model may lie below a module that is called so.
TEST(Wrappers, InFrontOfASelectionStayWhereOthersAreWithout) {
  Catalog content = content_of({"module.a.w", "module.b.w"});
  const ParamNames names{{"module.a.w", "module.b.w", "head.w"}, {}};
  EXPECT_TRUE(unwrap_names(Wrappers::off, names, content).empty());
  EXPECT_EQ(content.tensors[0].name, "module.a.w");
}

TEST(Wrappers, StayWhereTwoNamesWouldBeOne) {
  for (const char* word : kMiddle) {
    const std::string name = std::string("a.") + word + "w";
    Catalog content = content_of({name, "a.w"});
    const auto lines = unwrap(Wrappers::off, {}, content);
    EXPECT_EQ(names_in(content), (std::vector<std::string>{name, "a.w"}));
    ASSERT_EQ(lines.size(), 1u);
    EXPECT_NE(lines[0].find(name), std::string::npos) << lines[0];
  }
}

// An optimizer's states and their parameters, of which one side has wrappers that the other has
// not.
TEST(Wrappers, ComeOffWhereStatesAndParametersHaveDifferentNames) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    Random random(seed);
    const std::string front = random() % 2 ? kFront[random() % kFront.size()] : "";
    const bool states_wrapped = random() % 2 == 0;
    std::vector<std::string> wrapped;
    for (const char* bare : kBare) wrapped.push_back(front + wrapped_inside(bare, random));
    const std::vector<std::string> bare(kBare.begin(), kBare.end());
    Catalog content = content_of(states_wrapped ? bare : wrapped);
    Names of_optimizer;
    for (const std::string& name : states_wrapped ? wrapped : bare) {
      TensorEntry& state = content.tensors.emplace_back();
      state.name = name;
      state.state = "exp_avg";
      of_optimizer.insert(name);
    }
    content.groups.push_back({"adamw", {}, states_wrapped ? wrapped : bare});
    content.param_steps = {{(states_wrapped ? wrapped : bare)[0], 3}};
    unwrap(Wrappers::off_apart, of_optimizer, content);
    EXPECT_EQ(content.groups[0].params, bare) << seed;
    EXPECT_TRUE(content.param_steps.contains(bare[0]));
    for (std::size_t i = 0; i < content.tensors.size(); ++i)
      EXPECT_EQ(content.tensors[i].name, bare[i % bare.size()]) << seed;
  }
}

TEST(Wrappers, StayWhereStatesAndParametersHaveThemBoth) {
  Catalog content = content_of({"_orig_mod.a.w", "_orig_mod.b.w"});
  content.groups.push_back({"adamw", {}, {"_orig_mod.a.w", "_orig_mod.b.w"}});
  const Names of_optimizer = {"_orig_mod.a.w", "_orig_mod.b.w"};
  EXPECT_TRUE(unwrap(Wrappers::off_apart, of_optimizer, content).empty());
  EXPECT_EQ(content.tensors[0].name, "_orig_mod.a.w");
}

TEST(Wrappers, ATrainersOwnPrefixIsHintedAtWhereAllNamesHaveIt) {
  EXPECT_EQ(hint_to_strip(content_of({"model.a", "model.b"})).size(), 1u);
  EXPECT_TRUE(hint_to_strip(content_of({"model.a", "lm_head"})).empty());
  EXPECT_TRUE(hint_to_strip(content_of({})).empty());
}

}  // namespace
}  // namespace ebb::formats
