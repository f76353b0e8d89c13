// ckpt-convert --compress as a user runs it.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tests/tools/convert.h"
#include "tests/tools/killed_convert.h"

namespace ebb {

namespace {

namespace fs = std::filesystem;
using test_support::Outcome;
using test_support::run_program;
using test_support::ScratchDirectory;

constexpr const char* kTied = "dcp/fsdp2_w2_odd_rows_tied/data";
constexpr const char* kZoo = "dcp/zoo_w1/data";

std::uint64_t bytes_below(const std::string& directory) {
  std::uint64_t bytes = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory))
    bytes += entry.file_size();
  return bytes;
}

TEST(ConvertCompress, DcpForOtherRanksAndBackHoldsTheSame) {
  for (const char* source : {kTied, kZoo, "dcp/fsdp2_w4_fewer_rows_flat_optim/data"}) {
    const ScratchDirectory scratch;
    const std::string small = scratch / "small", plain = scratch / "plain", back = scratch / "back";
    const Outcome run = convert({source, small, "-t", "dcp", "-w", "3", "--compress", "zstd"});
    ASSERT_EQ(run.exit, 0) << run.err;
    EXPECT_NE(run.out.find(" out of "), std::string::npos) << run.out;
    EXPECT_NE(run.out.find("verified bit for bit"), std::string::npos) << run.out;
    ASSERT_EQ(convert({source, plain, "-t", "dcp", "-w", "3"}).exit, 0);
    EXPECT_LT(bytes_below(small), bytes_below(plain) * 2 / 3);
    const Outcome verified = run_program("ckpt-inspect", {small, "--verify"});
    EXPECT_EQ(verified.exit, 0) << verified.err << verified.out;
    ASSERT_EQ(convert({small, back, "-t", "dcp", "-w", "2"}).exit, 0);
    const Outcome same = run_program("ckpt-inspect", {back, "--diff", source});
    EXPECT_EQ(same.exit, 0) << same.out << same.err;
  }
}

TEST(ConvertCompress, EveryLevelComesBackAndHarderOnesAreSmaller) {
  const ScratchDirectory scratch;
  for (const char* level : {"1", "9", "19"}) {
    const std::string out = scratch / level;
    const Outcome run =
        convert({kTied, out, "-t", "dcp", "--compress", std::string("zstd:") + level});
    EXPECT_EQ(run.exit, 0) << run.err;
    EXPECT_EQ(run_program("ckpt-inspect", {out, "--diff", kTied}).exit, 0) << level;
  }
  EXPECT_LT(bytes_below(scratch / "19"), bytes_below(scratch / "1"));
}

TEST(ConvertCompress, VerifyFindsOneFlippedBitInAFrame) {
  const ScratchDirectory scratch;
  const std::string out = scratch / "out";
  ASSERT_EQ(convert({kTied, out, "-t", "dcp", "--compress", "zstd"}).exit, 0);
  std::fstream file(out + "/__0_0.distcp", std::ios::in | std::ios::out | std::ios::binary);
  const auto middle = static_cast<std::streamoff>(fs::file_size(out + "/__0_0.distcp") / 2);
  file.seekg(middle);
  const char byte = static_cast<char>(file.get());
  file.seekp(middle);
  file.put(static_cast<char>(byte ^ 0x10));
  file.close();
  EXPECT_EQ(run_program("ckpt-inspect", {out, "--verify"}).exit, 1);
}

TEST(ConvertCompress, FormatsWhoseReadersKnowNoCompressionRefuse) {
  const ScratchDirectory scratch;
  for (const char* format : {"safetensors", "torch", "deepspeed", "deepspeed-universal", "megatron",
                             "megatron-fsdp", "ebb"}) {
    const Outcome run = convert({kTied, scratch / "out", "-t", format, "--compress", "zstd"});
    EXPECT_EQ(run.exit, 2) << format;
    EXPECT_NE(
        run.err.find("--compress: readers of " + std::string(format) + " know no compressed data"),
        std::string::npos)
        << run.err;
    EXPECT_NE(run.err.find("formats that take --compress: dcp"), std::string::npos) << run.err;
    EXPECT_FALSE(fs::exists(scratch / "out"));
  }
}

TEST(ConvertCompress, WhatIsNoLevelIsSaidInOneLine) {
  const ScratchDirectory scratch;
  for (const char* text : {"gzip", "zst", "zstd7", "zstd:", "zstd:0", "zstd:20", "zstd:-1",
                           "zstd:3x", "zstd:99999999999"}) {
    const Outcome run = convert({kTied, scratch / "out", "-t", "dcp", "--compress", text});
    EXPECT_EQ(run.exit, 2) << text;
    EXPECT_NE(run.err.find("--compress takes zstd or zstd:LEVEL with a level from 1 to 19, not '" +
                           std::string(text) + "'"),
              std::string::npos)
        << run.err;
    EXPECT_EQ(std::ranges::count(run.err, '\n'), 1) << run.err;
  }
}

TEST(ConvertCompress, DryRunSaysWhichBytesItCounts) {
  const ScratchDirectory scratch;
  const Outcome run = convert({kTied, scratch / "out", "-t", "dcp", "--compress", "zstd", "-n"});
  EXPECT_EQ(run.exit, 0) << run.err;
  EXPECT_NE(run.out.find(" before compression\n"), std::string::npos) << run.out;
  const Outcome json =
      convert({kTied, scratch / "out", "-t", "dcp", "--compress", "zstd:5", "--json"});
  EXPECT_EQ(json.exit, 0) << json.err;
  EXPECT_NE(json.out.find("\"compression\": \"zstd:5\", \"compressed_bytes\": " +
                          std::to_string(bytes_below(scratch / "out"))),
            std::string::npos)
      << json.out;
}

// 24 MiB that a hard level works on for seconds.
void make_hard_checkpoint(const std::string& directory) {
  constexpr std::uint64_t kBytes = std::uint64_t{24} << 20;
  fs::create_directory(directory);
  const std::string header = R"({"w":{"dtype":"F32","shape":[6291456],"data_offsets":[0,)" +
                             std::to_string(kBytes) + "]}}";
  std::ofstream out(directory + "/model.safetensors", std::ios::binary);
  const std::uint64_t length = header.size();
  out.write(reinterpret_cast<const char*>(&length), sizeof(length));
  out << header;
  std::uint32_t state = 1;
  for (std::uint64_t i = 0; i < kBytes / 4; ++i) {
    state = state * 1664525 + 1013904223;
    const std::uint32_t word = state >> 12;
    out.write(reinterpret_cast<const char*>(&word), sizeof(word));
  }
}

TEST(ConvertCompress, AfterSigkillTheSameCommandGoesOn) {
  const ScratchDirectory scratch;
  const std::string source = scratch / "source", folder = scratch / "results";
  make_hard_checkpoint(source);
  fs::create_directory(folder);
  const std::vector<std::string> command = {source,    folder + "/out", "-t", "dcp", "--compress",
                                            "zstd:16", "--json",        "-j", "1"};
  if (!killed_once_journaled(command, folder))
    GTEST_SKIP() << "this machine compresses 24 MiB in about a second";
  const Outcome again = convert(command);
  EXPECT_EQ(again.exit, 0) << again.err;
  EXPECT_EQ(again.out.find("\"resumed_bytes\": 0,"), std::string::npos) << again.out;
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), fs::directory_iterator()), 1);
  EXPECT_EQ(run_program("ckpt-inspect", {folder + "/out", "--diff", source}).exit, 0);
}

}  // namespace

}  // namespace ebb
