// ckpt-inspect on single HDF5 files, and on damaged ones.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/support/program.h"

namespace ebb {

namespace {

namespace fs = std::filesystem;
using test_support::Outcome;
using test_support::run_program;
using test_support::ScratchDirectory;

Outcome digest(const std::string& path) {
  return run_program("ckpt-inspect", {path, "--tensors", "--digest", "--json"});
}

TEST(InspectHdf5File, OneFileAloneIsACheckpointToo) {
  const Outcome run = digest("hdf5/plain/data/state.h5");
  EXPECT_EQ(run.exit, 0) << run.err;
  const Outcome part = digest("hdf5/vds_two_ranks/data/global.h5");
  EXPECT_EQ(part.exit, 3);
  EXPECT_NE(part.err.find("hint: name the folder that holds all files"), std::string::npos)
      << part.err;
}

// A format that may have checksums says when it has none: "sound" is not all that is asked for.
TEST(InspectHdf5File, WhatHasNoChecksumsSaysSo) {
  constexpr const char* kNote = "no checksums: a changed byte of data cannot be seen";
  for (const char* json : {"", "--json"}) {
    std::vector<std::string> arguments = {"hdf5/plain/data", "--verify"};
    if (*json != '\0') arguments.emplace_back(json);
    const Outcome plain = run_program("ckpt-inspect", arguments);
    EXPECT_EQ(plain.exit, 0) << plain.err;
    EXPECT_NE(plain.out.find(kNote), std::string::npos) << plain.out;
    arguments[0] = "hdf5/deflate_fletcher/data";
    EXPECT_EQ(run_program("ckpt-inspect", arguments).out.find("datasets have no checksums"),
              std::string::npos);
  }
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

}  // namespace ebb
