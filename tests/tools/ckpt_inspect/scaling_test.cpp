// What describing a checkpoint costs grows with its number of tensors, not with its square: that
// would be a hundred times. Caches make it more than ten.
#include <gtest/gtest.h>

#include "ebb/formats/describe.h"
#include "tests/support/cpu_time.h"
#include "tests/support/program.h"
#include "tests/support/source_tree.h"
#include "tests/support/synthetic.h"

namespace ebb {

namespace {

using test_support::ScratchDirectory;
using test_support::Synthetic;

double seconds_to_describe(const Synthetic& checkpoint) {
  const ScratchDirectory scratch;
  const auto made = test_support::make_synthetic(checkpoint, scratch.path());
  EXPECT_TRUE(made) << made.error().message;
  const auto tree = test_support::load_tree(scratch.path());
  return test_support::least_cpu_seconds(3, [&] {
    const auto described = formats::describe(tree);
    ASSERT_TRUE(described) << described.error().message;
    EXPECT_TRUE(prove_coverage((*described)->catalog()));
  });
}

class DescribeScaling : public testing::TestWithParam<const char*> {};

TEST_P(DescribeScaling, TenTimesTheTensorsTakeLessThanThirtyTimesTheTime) {
  Synthetic small{.format = GetParam(), .params = 300, .world = 2};
  Synthetic large = small;
  large.params *= 10;
  EXPECT_LT(seconds_to_describe(large), 30 * seconds_to_describe(small));
}

TEST_P(DescribeScaling, TenTimesTheRanksTakeLessThanThirtyTimesTheTime) {
  Synthetic small{.format = GetParam(), .params = 100, .world = 4, .rows = 40};
  Synthetic large = small;
  large.world *= 10;
  EXPECT_LT(seconds_to_describe(large), 30 * seconds_to_describe(small));
}

INSTANTIATE_TEST_SUITE_P(Formats, DescribeScaling,
                         testing::Values("dcp", "safetensors", "deepspeed", "megatron"),
                         [](const auto& one) { return std::string(one.param); });

}  // namespace

}  // namespace ebb
