// What `./dev soak` does a thousand times.
#include <gtest/gtest.h>

#include "tests/support/program.h"

namespace ebb::test {
namespace {

TEST(Soak, ATrainingKilledTwentyTimesHasTheBitsOfOneThatWasNot) {
  const auto soaked = test_support::run_program("ebb-soak", {"20"});
  EXPECT_EQ(soaked.exit, 0) << soaked.out << soaked.err;
  EXPECT_NE(soaked.out.find("\"kills\": 20,"), std::string::npos) << soaked.out;
}

}  // namespace
}  // namespace ebb::test
