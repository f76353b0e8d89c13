#include "examples/gpt/model.h"

#include <gtest/gtest.h>

#include <set>

namespace ebb::gpt {
namespace {

Model make(const Config& config) {
  auto model = Model::make(config);
  EBB_CHECK(model.has_value());
  return *model;
}

TEST(Model, ParametersFillTheFlatVectorInForwardOrder) {
  const Model model = make({});
  std::uint64_t next = 0;
  std::set<std::string> names;
  for (const Parameter& parameter : model.parameters) {
    EXPECT_EQ(parameter.first, next) << parameter.name;
    EXPECT_EQ(parameter.elems, formats::volume(parameter.shape)) << parameter.name;
    next += parameter.elems;
    names.insert(parameter.name);
  }
  EXPECT_EQ(next, model.elems);
  EXPECT_EQ(names.size(), model.parameters.size());
  EXPECT_GE(model.elems, 800'000u);
  EXPECT_LE(model.elems, 1'500'000u);
}

TEST(Model, MuonTakesTheBlocksMatricesAndAdamWTheRest) {
  for (const Parameter& parameter : make({}).parameters) {
    const bool block_matrix =
        parameter.name.starts_with("blocks.") && parameter.name.ends_with(".weight");
    EXPECT_EQ(parameter.optimizer, block_matrix ? Optimizer::muon : Optimizer::adamw)
        << parameter.name;
  }
}

TEST(Model, InitialWeightsFollowFromTheSeedAlone) {
  const Model model = make({});
  const std::vector<float> weights = initial_weights(model, 1);
  EXPECT_EQ(weights, initial_weights(model, 1));
  EXPECT_NE(weights, initial_weights(model, 2));
  for (const Parameter& parameter : model.parameters) {
    double square = 0;
    for (std::uint64_t i = 0; i < parameter.elems; ++i) {
      const double value = weights[parameter.first + i];
      square += value * value;
    }
    const double variance = square / static_cast<double>(parameter.elems);
    const double columns = static_cast<double>(parameter.shape.back());
    if (parameter.name.ends_with("gain")) {
      EXPECT_EQ(variance, 1.0) << parameter.name;
    } else if (parameter.name == "embedding.weight" || parameter.name.ends_with("up.weight")) {
      EXPECT_NEAR(variance * columns, 1.0, 0.05) << parameter.name;
    } else if (parameter.name == "head.weight") {
      EXPECT_EQ(variance, 0.0);
    }
  }
}

TEST(Model, RefusesHeadsThatDoNotFitTheWidth) {
  Config config;
  config.width = 100;
  config.heads = 8;
  const auto model = Model::make(config);
  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().message, "model: width 100 is not a multiple of 2 x 8 heads");
}

}  // namespace
}  // namespace ebb::gpt
