#include "tests/libmuon/support/trained.h"

#include <gtest/gtest.h>

#include "tests/libmuon/support/world.h"

namespace ebb::test {

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
