// ckpt-inspect --diff: across formats, cuts and precisions, down to the element.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/tools/ckpt_inspect/inspect.h"

namespace ebb {

namespace {

using inspect_test::bytes_of;
using inspect_test::inspect;
using inspect_test::says;
using inspect_test::write_safetensors;
using test_support::Outcome;
using test_support::ScratchDirectory;

struct File {
  std::string dtype;
  std::string bytes;
};
// Both as [2, 3].
Outcome diff(const File& left, const File& right) {
  const ScratchDirectory scratch;
  write_safetensors(scratch / "a.safetensors", left.dtype, "[2, 3]", left.bytes);
  write_safetensors(scratch / "b.safetensors", right.dtype, "[2, 3]", right.bytes);
  return inspect({scratch / "a.safetensors", "--diff", scratch / "b.safetensors"});
}

TEST(InspectDiff, NamesCountPlaceAndSizeOfDifferences) {
  const Outcome run = diff({"F32", bytes_of<float>({1, 2, 3, 4, 5, 6})},
                           {"F32", bytes_of<float>({1, 2, 3, 4.5, 5, 4})});
  EXPECT_EQ(run.exit, 1);
  EXPECT_EQ(run.out,
            "  w (param): 2 of 6 elements differ, first at [1, 0], largest difference 2\n"
            "1 difference; 0 tensors (0 B) equal bit for bit, 0 values compared\n");
}

TEST(InspectDiff, BitsCountWhereValuesAreEqual) {
  const Outcome run = diff({"F32", bytes_of<float>({0, 2, 3, 4, 5, 6})},
                           {"F32", bytes_of<float>({-0.0f, 2, 3, 4, 5, 6})});
  EXPECT_EQ(run.exit, 1);
  EXPECT_NE(run.out.find("1 of 6 elements differs, first at [0, 0], largest difference 0\n"),
            std::string::npos)
      << run.out;
}

TEST(InspectDiff, ANanAgainstANumberIsInfinitelyFar) {
  const Outcome run = diff({"F32", bytes_of<float>({1, 2, 3, 4, 5, NAN})},
                           {"F32", bytes_of<float>({1, 2, 3, 4, 5, 6})});
  EXPECT_NE(run.out.find("first at [1, 2], largest difference inf\n"), std::string::npos)
      << run.out;
}

TEST(InspectDiff, NamesDtypesAndStillComparesValues) {
  const Outcome run = diff({"F64", bytes_of<double>({1, 2, 3, 4, 5, 6})},
                           {"F32", bytes_of<float>({1, 2, 3, 4, 5, 6})});
  EXPECT_EQ(run.exit, 1);
  EXPECT_NE(run.out.find("  w (param): F64 against F32; values equal\n"), std::string::npos)
      << run.out;
}

TEST(InspectDiff, IsNothingAfterAConversionToAnotherFormatAndWorld) {
  for (const char* source : {"deepspeed/z3_muon_bf16_w4/data", "deepspeed/z2_muon_bf16_w2/data",
                             "deepspeed/z1_adamw_bf16_w2/data", "dcp/tp_fsdp_2x2_strided/data"}) {
    const ScratchDirectory scratch;
    const std::string out = scratch / "out";
    const Outcome convert = test_support::run_program(
        "ckpt-convert", {source, out, "--to", "dcp", "--world-size", "3", "--drop"});
    ASSERT_EQ(convert.exit, 0) << convert.err;
    for (const auto& [left, right] : {std::pair(std::string(source), out), {out, source}}) {
      const Outcome run = inspect({left, "--diff", right});
      EXPECT_EQ(run.exit, 0) << source << "\n" << run.out << run.err;
      EXPECT_TRUE(run.out.starts_with("same: ")) << run.out;
    }
  }
}

// Two checkpoints of one program, one step apart: what the settings say is compared too.
TEST(InspectDiff, ComparesStepAndSettings) {
  const Outcome run = inspect({"dcp/torch2.8.0_w2/data", "--diff", "dcp/hsdp_2x2/data", "--json"});
  EXPECT_EQ(run.exit, 1);
  EXPECT_NE(run.out.find("\"group 0: momentum: 0.9 against 0.93\""), std::string::npos) << run.out;
}

// One format holds what the other side of it holds; another one may not be able to.
TEST(InspectDiff, NamesValuesOfOneSideOnly) {
  const ScratchDirectory scratch;
  const std::string folder = scratch / "less", dcp = scratch / "dcp";
  inspect_test::copy("folders/trainer/data", folder);
  inspect_test::replace(folder + "/trainer_state.json", "\"max_steps\": 2,", "");
  const Outcome run = inspect({"folders/trainer/data", "--diff", folder});
  EXPECT_EQ(run.exit, 1);
  EXPECT_TRUE(
      run.out.starts_with("  value trainer_state.max_steps: only on the left\n"
                          "1 difference; "))
      << run.out;
  const Outcome convert = test_support::run_program("ckpt-convert", {folder, dcp, "--to", "dcp"});
  ASSERT_EQ(convert.exit, 0) << convert.err;
  const Outcome other = inspect({dcp, "--diff", "folders/trainer/data"});
  EXPECT_EQ(other.exit, 0);
  EXPECT_TRUE(says(other.out, "not compared, only on the right: 2 values (")) << other.out;
  EXPECT_TRUE(says(other.out, "trainer_state.max_steps")) << other.out;
}

TEST(InspectDiff, AFilterMayLeaveNothingOfTheOtherSide) {
  const Outcome run = inspect({"dcp/hsdp_2x2/data", "--diff", "safetensors/odd_header_spaces/data",
                               "-k", "head.weight", "--state", "param"});
  EXPECT_EQ(run.exit, 1);
  EXPECT_NE(run.out.find("head.weight (param): only on the left\n"), std::string::npos) << run.out;
}

// torch.save names optimizer state by number, other formats by parameter.
TEST(InspectDiff, FindsTheSameTensorUnderItsNameInEveryFormat) {
  const ScratchDirectory scratch;
  const std::string source = "torch/muon_adamw_state/data";
  for (const char* format : {"dcp", "deepspeed-universal", "ebb"}) {
    const std::string out = scratch / format;
    const Outcome convert = test_support::run_program(
        "ckpt-convert",
        {source, out, "--to", format, "--world-size", "2", "--drop", "--names", "order"});
    ASSERT_EQ(convert.exit, 0) << convert.err;
    for (const auto& [left, right] : {std::pair(source, out), std::pair(out, source)}) {
      const Outcome run = inspect({left, "--diff", right});
      EXPECT_EQ(run.exit, 0) << format << "\n" << run.out << run.err;
    }
  }
}

}  // namespace

}  // namespace ebb
