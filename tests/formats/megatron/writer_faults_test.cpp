// Faults of writers, in checkpoints that those writers wrote; and none in all others.
#include "ebb/formats/elements/writer_faults.h"

#include <gtest/gtest.h>

#include "ebb/formats/describe.h"
#include "tests/formats/megatron/support.h"
#include "tests/support/source_tree.h"

namespace ebb {
namespace {

std::vector<std::string> faults_in(const std::filesystem::path& folder) {
  const auto checkpoint = formats::describe(test_support::load_tree(folder));
  if (!checkpoint.has_value()) return {};
  auto faults = known_writer_faults(**checkpoint);
  if (faults) return std::move(*faults);
  ADD_FAILURE() << folder << " " << faults.error().message;
  return {};
}

// Of megatron-core 0.19.2, with buckets of 300 elements.
TEST(WriterFaults, MastersFromShiftedPlacesAreCounted) {
  const auto faults = faults_in(megatron_test::case_folder("adam_shifted_buckets_dp2") / "data");
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_NE(faults[0].find("of 13 of 17 parameters"), std::string::npos) << faults[0];
  EXPECT_NE(faults[0].find("linear_fc2.weight, 64 of 64 elements"), std::string::npos) << faults[0];
  EXPECT_NE(faults[0].find(" 7 end in zeros"), std::string::npos) << faults[0];
}

// Of torch 2.13: three steps of torch.optim.Muon(nesterov=False) on bf16 weights.
TEST(WriterFaults, AMomentumThatIsNormalisedIsMeasured) {
  const auto faults = faults_in(std::filesystem::path(EBB_FIXTURES) / "faults" / "torch_muon_bf16");
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_NE(faults[0].find("all 2 matrices has norm 1 (1.0001 to 1.0011)"), std::string::npos)
      << faults[0];
}

TEST(WriterFaults, NoOtherFixtureHasOne) {
  std::size_t looked_at = 0;
  for (const char* family : {"dcp", "deepspeed", "megatron", "safetensors", "torch"}) {
    const auto folder = std::filesystem::path(EBB_FIXTURES) / family;
    for (const auto& one : std::filesystem::directory_iterator(folder)) {
      if (!std::filesystem::is_directory(one.path() / "data")) continue;
      if (one.path().filename() == "adam_shifted_buckets_dp2") continue;
      for (const std::string& fault : faults_in(one.path() / "data"))
        ADD_FAILURE() << one.path() << ": " << fault;
      ++looked_at;
    }
  }
  EXPECT_GT(looked_at, 60u);
}

}  // namespace
}  // namespace ebb
