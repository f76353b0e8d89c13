// ckpt-inspect on HDF5 files that h5py wrote: the content, or the refusal.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/support/expected.h"
#include "tests/support/program.h"

namespace {

namespace fs = std::filesystem;
using test_support::Outcome;
using test_support::run_program;
using test_support::ScratchDirectory;

Outcome digest(const std::string& path) {
  return run_program("ckpt-inspect", {path, "--tensors", "--digest", "--json"});
}

// The fixtures' "values" also hold what is no value of the file (where data begins, which files
// there are), so only tensors are compared with them.
class InspectHdf5 : public testing::TestWithParam<std::string> {};

TEST_P(InspectHdf5, AgreesWithH5py) {
  const std::string name = "hdf5/" + GetParam();
  const Outcome run = digest(name + "/data");
  ASSERT_EQ(run.exit, 0) << run.err;
  const std::string differences =
      test_support::content_differences(run.out, fs::path(EBB_FIXTURES) / name / "expected.json");
  EXPECT_TRUE(differences.empty() || differences == "values differ\n") << differences;
  EXPECT_NE(run.out.find("\"step\": 7"), std::string::npos) << run.out;
}

INSTANTIATE_TEST_SUITE_P(Fixtures, InspectHdf5,
                         testing::Values("plain", "deflate_fletcher", "vds_two_ranks",
                                         "zstd_filter_32015"),
                         [](const auto& one_case) { return one_case.param; });

struct Refusal {
  const char* name;
  int exit;
  const char* said;
};

class InspectHdf5Bad : public testing::TestWithParam<Refusal> {};

TEST_P(InspectHdf5Bad, IsRefusedInOneSentence) {
  const Outcome run = digest("hdf5/" + std::string(GetParam().name) + "/data");
  EXPECT_EQ(run.exit, GetParam().exit);
  EXPECT_EQ(run.out, "");
  EXPECT_NE(run.err.find(GetParam().said), std::string::npos) << run.err;
  EXPECT_EQ(run.err.find("ckpt-inspect: error: hdf5/"), 0u) << run.err;
}

INSTANTIATE_TEST_SUITE_P(
    Fixtures, InspectHdf5Bad,
    testing::Values(
        Refusal{"bad_external_link", 4, "external link to another file: /etc/outside.h5"},
        Refusal{"bad_external_storage", 4,
                "raw data in an external file outside the checkpoint: ../../../outside.bin"},
        Refusal{"bad_fletcher_flip", 3, "/state/w/master: its checksum (fletcher32) is wrong"},
        Refusal{"bad_shape_bomb", 3,
                "/state/w/master: shape [1099511627776, 1048576] needs 4611686018427387904 bytes, "
                "but the file has no such data"},
        Refusal{"bad_soft_link_loop", 3,
                "soft links form a loop: /state/v -> /state/w -> /state/v"},
        Refusal{"bad_truncated", 3, "the file ends before the end its superblock states"},
        Refusal{"bad_vds_missing_source", 3,
                "virtual dataset's source file rank0.h5 does not exist (the library alone would "
                "read NaN)"}),
    [](const auto& one_case) { return std::string(one_case.param.name); });

TEST(InspectHdf5File, OneFileAloneIsACheckpointToo) {
  const Outcome run = digest("hdf5/plain/data/state.h5");
  EXPECT_EQ(run.exit, 0) << run.err;
  const Outcome part = digest("hdf5/vds_two_ranks/data/global.h5");
  EXPECT_EQ(part.exit, 3);
  EXPECT_NE(part.err.find("hint: name the folder that holds all files"), std::string::npos)
      << part.err;
}

// libhdf5 sees every cut and every changed byte of its metadata; whatever it does, the answer is a
// sentence or a listing, never a crash of ours.
TEST(InspectHdf5File, EveryDamagedByteOfTheMetadataIsRefusedOrHarmless) {
  const ScratchDirectory scratch;
  std::ifstream in(fs::path(EBB_FIXTURES) / "hdf5/deflate_fletcher/data/state.h5",
                   std::ios::binary);
  const std::string whole(std::istreambuf_iterator<char>(in), {});
  int refused = 0, listed = 0;
  for (std::size_t at = 0; at < std::min<std::size_t>(whole.size(), 4096); at += 17) {
    std::string bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ 0xff);
    std::ofstream(scratch / "a.h5", std::ios::binary) << bytes;
    const Outcome run = run_program("ckpt-inspect", {scratch.path(), "--verify"});
    EXPECT_TRUE(run.exit == 0 || run.exit == 1 || run.exit == 3 || run.exit == 4)
        << at << ": " << run.exit << " " << run.err;
    ++(run.exit == 0 ? listed : refused);
  }
  EXPECT_GT(refused, 20);
  EXPECT_GT(listed, 0);
}

}  // namespace
