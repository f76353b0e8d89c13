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
  EXPECT_EQ(part.exit, 2);
  EXPECT_NE(part.err.find("hint: name the folder: hdf5/vds_two_ranks/data\n"), std::string::npos)
      << part.err;
}

// A safetensors file of one tensor, large enough to be compressed.
void make_one_tensor(const std::string& path) {
  constexpr std::uint64_t kBytes = 16384;
  const std::string header =
      R"({"w":{"dtype":"F32","shape":[64,64],"data_offsets":[0,)" + std::to_string(kBytes) + "]}}";
  std::ofstream out(path, std::ios::binary);
  const std::uint64_t length = header.size();
  out.write(reinterpret_cast<const char*>(&length), sizeof(length));
  out << header << std::string(kBytes, 'x');
}

// A format that may have checksums says when it has none: "sound" is not all that is asked for.
TEST(InspectHdf5File, WhatHasNoChecksumsSaysSo) {
  const std::string note = "datasets have no checksums: a changed byte of data cannot be seen";
  const ScratchDirectory scratch;
  make_one_tensor(scratch / "a.safetensors");
  const Outcome packed = run_program("ckpt-convert", {scratch / "a.safetensors", scratch / "packed",
                                                      "-t", "hdf5", "--compress", "zstd"});
  ASSERT_EQ(packed.exit, 0) << packed.err;
  for (const std::vector<std::string>& mode :
       {std::vector<std::string>{"--verify"}, {"--verify", "--json"}}) {
    const auto verified = [&](std::string checkpoint) {
      std::vector<std::string> arguments = mode;
      arguments.insert(arguments.begin(), std::move(checkpoint));
      const Outcome run = run_program("ckpt-inspect", arguments);
      EXPECT_EQ(run.exit, 0) << run.err;
      return run.out;
    };
    const std::string none = verified("hdf5/plain/data");
    EXPECT_NE(none.find("its " + note), std::string::npos) << none;
    const std::string some = verified("hdf5/deflate_fletcher/data");  // "big_endian" has no filter
    EXPECT_NE(some.find("1 of 5 " + note), std::string::npos) << some;
    const std::string all = verified(scratch / "packed");
    EXPECT_EQ(all.find("no checksums"), std::string::npos) << all;
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
