// The backward pass against finite differences of the forward pass, both in double.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "examples/gpt/layers.h"
#include "examples/gpt/random.h"

namespace ebb::gpt {
namespace {

struct Case {
  Model model;
  std::vector<double> weights;
  std::vector<std::uint8_t> tokens;
};

Case small_case() {
  Config config;
  config.sequence = 7;
  config.width = 12;
  config.layers = 2;
  config.heads = 3;
  config.hidden = 20;
  auto model = Model::make(config);
  EBB_CHECK(model.has_value());
  Case made{*model, std::vector<double>(model->elems), {}};
  // Not the initial weights: zeros there would hide terms.
  for (std::uint64_t i = 0; i < model->elems; ++i) made.weights[i] = 0.4 * random_float(3, i) + 0.1;
  made.tokens = {7, 9, 7, 255, 0, 9, 9, 31};
  return made;
}

double loss(const Case& c, Activations<double>& state) {
  return forward<double>(c.model, c.weights, c.tokens, state);
}

TEST(Gradient, MatchesCentralDifferencesOfEveryParameter) {
  Case c = small_case();
  Activations<double> state(c.model);
  std::vector<double> gradient(c.model.elems, std::nan(""));
  loss(c, state);
  backward<double>(c.model, c.weights, c.tokens, state, gradient);
  for (const Parameter& parameter : c.model.parameters) {
    const std::uint64_t stride = std::max<std::uint64_t>(1, parameter.elems / 40);
    double largest = 0;
    for (std::uint64_t i = 0; i < parameter.elems; i += stride) {
      const std::uint64_t at = parameter.first + i;
      const double kept = c.weights[at], h = 1e-5;
      c.weights[at] = kept + h;
      const double above = loss(c, state);
      c.weights[at] = kept - h;
      const double below = loss(c, state);
      c.weights[at] = kept;
      EXPECT_NEAR(gradient[at], (above - below) / (2 * h), 1e-9) << parameter.name << " " << i;
      largest = std::max(largest, std::abs(gradient[at]));
    }
    // Of the embedding the stride meets rows of bytes that do not occur.
    if (parameter.name != "embedding.weight") {
      EXPECT_GT(largest, 1e-4) << parameter.name;
    }
  }
  for (const std::uint64_t token : {7u, 9u, 255u, 0u}) {  // these do
    const std::uint64_t at = c.model.embedding + token * c.model.config.width + 5;
    const double kept = c.weights[at], h = 1e-5;
    c.weights[at] = kept + h;
    const double above = loss(c, state);
    c.weights[at] = kept - h;
    const double below = loss(c, state);
    c.weights[at] = kept;
    EXPECT_NEAR(gradient[at], (above - below) / (2 * h), 1e-9) << "embedding of " << token;
    EXPECT_GT(std::abs(gradient[at]), 1e-5);
  }
}

TEST(Gradient, InFloatAgreesWithDouble) {
  const Case c = small_case();
  Activations<double> exact(c.model);
  std::vector<double> expected(c.model.elems);
  const double exact_loss = loss(c, exact);
  backward<double>(c.model, c.weights, c.tokens, exact, expected);

  const std::vector<float> weights(c.weights.begin(), c.weights.end());
  Activations<float> state(c.model);
  std::vector<float> gradient(c.model.elems, std::nanf(""));
  EXPECT_NEAR(forward<float>(c.model, weights, c.tokens, state), exact_loss, 1e-5);
  backward<float>(c.model, weights, c.tokens, state, gradient);
  double error = 0, size = 0;
  for (std::uint64_t i = 0; i < c.model.elems; ++i) {
    error += std::pow(static_cast<double>(gradient[i]) - expected[i], 2);
    size += std::pow(expected[i], 2);
  }
  EXPECT_LT(std::sqrt(error / size), 1e-5);
}

TEST(Forward, APredictionDoesNotSeeLaterBytes) {
  Case c = small_case();
  Activations<double> state(c.model);
  loss(c, state);
  const std::vector<double> before = state.probabilities;
  c.tokens[5] = 200;
  loss(c, state);
  for (std::size_t i = 0; i < 5 * kVocabulary; ++i) ASSERT_EQ(state.probabilities[i], before[i]);
  EXPECT_NE(state.probabilities[5 * kVocabulary], before[5 * kVocabulary]);
}

TEST(Forward, OrderOfEarlierBytesMatters) {
  Case c = small_case();
  Activations<double> state(c.model);
  loss(c, state);
  const std::vector<double> before = state.probabilities;
  std::swap(c.tokens[0], c.tokens[1]);
  loss(c, state);
  EXPECT_GT(std::abs(state.probabilities[4 * kVocabulary] - before[4 * kVocabulary]), 1e-8);
}

TEST(Activations, BytesCountsEveryBuffer) {
  const Case c = small_case();
  const Activations<float> state(c.model);
  std::uint64_t elems = state.rotation.size() + state.output.size() + state.final_normed.size() +
                        state.final_inverse_rms.size() + state.probabilities.size() +
                        state.d_hidden.size() + state.d_scores.size();
  for (const auto* buffer : {&state.d_stream, &state.d_normed, &state.d_query, &state.d_key,
                             &state.d_value, &state.d_mixed})
    elems += buffer->size();
  for (const BlockActivations<float>& b : state.blocks)
    for (const auto* buffer :
         {&b.input, &b.normed, &b.inverse_rms, &b.query, &b.key, &b.value, &b.attention, &b.mixed,
          &b.middle, &b.mlp_normed, &b.mlp_inverse_rms, &b.raised, &b.squared})
      elems += buffer->size();
  EXPECT_EQ(Activations<float>::bytes(c.model), elems * sizeof(float));
}

}  // namespace
}  // namespace ebb::gpt
