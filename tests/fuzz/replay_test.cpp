// Every input ever worth keeping, through the functions the fuzzers call. A regression is a file in
// tests/fuzz/corpus/<target>/ named after what it broke.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/formats/hdf5/probed_tree.h"
#include "tests/fuzz/inputs.h"
#include "tests/fuzz/targets.h"
#include "tests/support/cpu_time.h"

namespace ebb {

namespace {

namespace fs = std::filesystem;

class FuzzReplay : public testing::TestWithParam<fuzz::Target> {};

TEST_P(FuzzReplay, KeptInputsCrashNothingAndEndSoon) {
  constexpr double kSoon = 10;  // processor seconds, of what takes milliseconds
  std::size_t inputs = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(EBB_CORPUS) / GetParam().name)) {
    SCOPED_TRACE(entry.path().filename().string());
    std::ifstream in(entry.path(), std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(in), {}};
    const auto run = [&] { GetParam().run(formats::view_of(bytes)); };
    EXPECT_LT(test_support::least_cpu_seconds(1, run), kSoon);
    ++inputs;
  }
  EXPECT_GT(inputs, 0u);
}

std::string name_of_target(const testing::TestParamInfo<fuzz::Target>& info) {
  return std::string(info.param.name);
}

INSTANTIATE_TEST_SUITE_P(Targets, FuzzReplay,
                         testing::ValuesIn(fuzz::all_targets().begin(), fuzz::all_targets().end()),
                         name_of_target);

TEST(FuzzInputs, AreLookedAtWithTheHelpOfOtherProgramsToo) {
  const auto tree = std::make_shared<test_support::ProbedTree>("t");
  formats::hdf5::Description description;
  description.groups.push_back({"/", {}});
  tree->add_hdf5("a.h5", test_support::hdf5_bytes(4096), description);
  EXPECT_TRUE(fuzz::look_at(tree));
}

TEST(FuzzCorpus, HasAFolderForEachTargetAndNoOther) {
  for (const auto& entry : fs::directory_iterator(EBB_CORPUS))
    EXPECT_NE(fuzz::target_named(entry.path().filename().string()), nullptr) << entry.path();
}

}  // namespace

}  // namespace ebb
