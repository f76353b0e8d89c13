// --weights answers for the complete model, or says what of it is not there.
#include "ebb/formats/conversion/weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "ebb/formats/registry.h"

namespace ebb::formats {
namespace {

using Random = std::mt19937_64;

TensorEntry tensor(std::string name, std::string state, Shape shape = {2, 3}) {
  TensorEntry entry;
  entry.name = std::move(name);
  entry.state = std::move(state);
  entry.shape = std::move(shape);
  return entry;
}

std::string param(std::size_t i) { return "layers." + std::to_string(i) + ".w"; }

Catalog model_of(std::size_t params, const std::string& state = "param") {
  Catalog catalog;
  for (std::size_t i = 0; i < params; ++i) catalog.tensors.push_back(tensor(param(i), state));
  return catalog;
}

Result<Weights> weights(const Catalog& catalog, std::string_view format = "dcp",
                        const Wanted& wanted = nullptr) {
  return weights_of(*format_named(format), catalog, wanted);
}

bool says(const std::vector<std::string>& lines, std::string_view what) {
  return std::ranges::any_of(
      lines, [&](const std::string& line) { return line.find(what) != std::string::npos; });
}

// How an optimizer may say that it has a parameter.
void name_it(Catalog& catalog, const std::string& name, std::uint64_t how) {
  if (how == 0) catalog.tensors.push_back(tensor(name, "exp_avg"));
  if (how == 1) catalog.param_steps[name] = 3;
  if (how == 2) {
    if (catalog.groups.empty()) catalog.groups.emplace_back();
    catalog.groups[0].params.push_back(name);
  }
}

TEST(WeightsOfAModel, AreRefusedWithoutAParameterThatAnOptimizerNames) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    Random random(seed);
    const char* format = std::array{"dcp", "torch", "deepspeed", "megatron", "ebb"}[random() % 5];
    Catalog catalog;
    std::vector<std::string> missing;
    const std::size_t params = 2 + random() % 9;
    for (std::size_t i = 0; i < params; ++i) {
      const bool lost = i != 0 && random() % 4 == 0;
      const bool trained = i == 0 || random() % 3 != 0;
      if (!lost) catalog.tensors.push_back(tensor(param(i), random() % 2 ? "param" : "master"));
      if (trained) name_it(catalog, param(i), random() % 3);
      if (lost && trained) missing.push_back(param(i));
    }
    const auto found = weights(catalog, format);
    ASSERT_EQ(found.has_value(), missing.empty()) << seed;
    if (found) continue;
    EXPECT_EQ(found.error().code, Code::unsupported);
    EXPECT_NE(found.error().message.find("not complete"), std::string::npos);
    EXPECT_NE(found.error().message.find(std::ranges::min(missing)), std::string::npos)
        << found.error().message;
    // Left out on purpose is not missing.
    const auto wanted = [&](const TensorEntry& one) {
      return std::ranges::find(missing, one.name) == missing.end();
    };
    EXPECT_TRUE(weights(catalog, format, wanted)) << seed;
  }
}

TEST(WeightsOfAModel, AreNotTensorsThatAreNoneOfAnOptimizersParameters) {
  for (unsigned how = 0; how < 3; ++how) {
    Catalog catalog;
    catalog.tensors.push_back(tensor("rng.0.torch", "tensor", {5056}));
    for (std::size_t i = 0; i < 4; ++i) name_it(catalog, param(i), how);
    const auto found = weights(catalog);
    ASSERT_FALSE(found) << how;
    EXPECT_EQ(found.error().code, Code::unsupported);
    EXPECT_NE(found.error().message.find("rng.0.torch"), std::string::npos);
    EXPECT_NE(found.error().hint.find("--model KEY"), std::string::npos);
  }
}

// Numbers of an optimizer that became no names tell how many they are, and their shapes.
TEST(WeightsOfAModel, AreNotFewerThanTheNumbersOfAnOptimizer) {
  for (std::size_t numbers = 1; numbers < 6; ++numbers)
    for (const Shape& shape : {Shape{2, 3}, Shape{7}}) {
      Catalog catalog = model_of(3);
      StateDictOptimizer optimizer;
      optimizer.at.path = {"optimizer"};
      for (std::size_t i = 0; i < numbers; ++i) {
        optimizer.params.push_back("optimizer." + std::to_string(i));
        catalog.tensors.push_back(tensor(optimizer.params.back(), "exp_avg", shape));
      }
      catalog.parts.optimizers.push_back(optimizer);
      EXPECT_EQ(weights(catalog, "torch").has_value(), numbers <= 3 && shape.size() == 2)
          << numbers << " of " << to_string(shape);
    }
}

TEST(WeightsOfAModel, AreNeverTakenOfOneRanksPart) {
  for (const std::uint32_t parts : {0u, 2u, 8u}) {
    Catalog catalog = model_of(3);
    ASSERT_TRUE(weights(catalog, "torch"));
    catalog.part_of = PartOfSave{parts, "mp_rank_01 lies beside it"};
    const auto found = weights(catalog, "torch");
    ASSERT_FALSE(found);
    EXPECT_EQ(found.error().code, Code::unsupported);
    EXPECT_NE(found.error().message.find("mp_rank_01 lies beside it"), std::string::npos);
  }
}

TEST(WeightsOfAModel, SayWhatOfTheModelStaysBehind) {
  Catalog catalog = model_of(2);
  catalog.parts.models.push_back({{"model"}, {}});
  for (const char* key : {"model.a._extra_state", "model.b._extra_state.x", "model.version", "step",
                          "model_args.layers"})
    catalog.values.push_back({key, {key}, Value::of_int(1)});
  const auto found = weights(catalog);
  ASSERT_TRUE(found);
  EXPECT_TRUE(says(found->changes,
                   "leaves out 3 values of the model's state dict, which a strict load_state_dict "
                   "asks for: model.a._extra_state, model.b._extra_state, model.version"));
}

TEST(WeightsOfAModel, SayWhereAScheduleFreeOptimizerWasInTrainMode) {
  for (const bool training : {false, true}) {
    Catalog catalog = model_of(2);
    catalog.groups.push_back(
        {"", {{"train_mode", Value::of_bool(training)}}, {param(0), param(1)}});
    const auto found = weights(catalog);
    ASSERT_TRUE(found);
    EXPECT_EQ(says(found->changes, "the point y"), training);
  }
}

}  // namespace
}  // namespace ebb::formats
