#include "tests/libmuon/support/trained.h"

#include <gtest/gtest.h>

#include "tests/libmuon/support/world.h"

namespace ebb::test {

Training training_of(const Variant& variant) {
  const auto& [ranks, gradients, weights, chunk_bytes] = variant;
  const std::uint64_t tiles = chunk_bytes == 1 ? 1 : chunk_bytes == 5000 ? 12 : 1000;
  return {.ranks = ranks,
          .gradients = gradients,
          .weights = weights,
          .tile_bytes = chunk_bytes == 5000 ? 8192u : 4096u,
          .chunk_bytes = chunk_bytes,
          .early_gradient_bytes = ranks == 3 ? 1u << 20 : 0,
          .budget_bytes = tiles * 8192,
          .slots = 2 + ranks % 2,
          .threads = 1 + ranks % 2,
          .snapshot_every = ranks % 3};
}

std::string text_of(const Variant& variant) {
  return compose("{} to {} on {} ranks, chunks of {}", name_of(variant.gradients),
                 name_of(variant.weights), variant.ranks, variant.chunk_bytes);
}

Trained train_in_two(const Training& setup, std::uint64_t steps) {
  const TempDir directory;
  EXPECT_EQ(train(setup, directory.path(), steps / 2).error, "");
  Trained trained{train(setup, directory.path(), steps), tensors_of(directory.path())};
  EXPECT_EQ(trained.outcome.error, "");
  const std::string& origin = trained.outcome.origin;
  EXPECT_TRUE(origin.starts_with(compose("resumed the store at step {}", steps / 2))) << origin;
  EXPECT_FALSE(trained.outcome.weights.empty());
  return trained;
}

}  // namespace ebb::test
