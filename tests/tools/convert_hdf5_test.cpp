// ckpt-convert --to hdf5 and back: libhdf5 itself reads what was written, through ebb-hdf5-reader.
#include <gtest/gtest.h>

#include "tests/support/program.h"

namespace {

using test_support::Outcome;
using test_support::run_program;
using test_support::ScratchDirectory;

struct Case {
  const char* fixture;
  const char* format;
  const char* world;
};

class ConvertHdf5 : public testing::TestWithParam<Case> {};

// Bytes, names, states, groups, steps and values: nothing is lost on the way there and back.
TEST_P(ConvertHdf5, GivesBackWhatItWasGiven) {
  const ScratchDirectory scratch;
  const std::string there = scratch / "there";
  const std::string back = scratch / "back";
  const std::string source = std::string(GetParam().fixture) + "/data";
  const Outcome written = run_program(
      "ckpt-convert", {source, there, "--to", "hdf5", "--world-size", GetParam().world});
  ASSERT_EQ(written.exit, 0) << written.err;
  const Outcome read = run_program("ckpt-convert", {there, back, "--to", GetParam().format});
  ASSERT_EQ(read.exit, 0) << read.err;
  const Outcome compared = run_program("ckpt-inspect", {source, "--diff", back});
  EXPECT_EQ(compared.exit, 0) << compared.out;
}

// Fixtures whose keys are what the format's own writer would make of names, groups and steps.
INSTANTIATE_TEST_SUITE_P(Cases, ConvertHdf5,
                         testing::Values(Case{"dcp/zoo_w1", "dcp", "1"},
                                         Case{"dcp/zoo_w1", "dcp", "3"},
                                         Case{"dcp/fsdp2_w3_bf16_fp32_master", "dcp", "2"},
                                         Case{"safetensors/all_dtypes", "safetensors", "1"},
                                         Case{"safetensors/all_dtypes", "safetensors", "3"},
                                         Case{"hdf5/plain", "hdf5", "1"},
                                         Case{"hdf5/plain", "hdf5", "4"},
                                         Case{"hdf5/vds_two_ranks", "hdf5", "3"},
                                         Case{"hdf5/deflate_fletcher", "hdf5", "2"}));

TEST(ConvertHdf5Names, MayBeAnything) {
  const ScratchDirectory scratch;
  const std::string there = scratch / "there";
  const Outcome written = run_program(
      "ckpt-convert", {"safetensors/all_dtypes/data", there, "--to", "hdf5", "--world-size", "2"});
  ASSERT_EQ(written.exit, 0) << written.err;
  const Outcome read = run_program("ckpt-inspect", {there, "--tensors", "--digest", "--json"});
  ASSERT_EQ(read.exit, 0) << read.err;
  // One tensor of the fixture has the empty name: it got a number and says its name itself.
  EXPECT_NE(read.out.find("\"name\": \"\""), std::string::npos);
}

}  // namespace
