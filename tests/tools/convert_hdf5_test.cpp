// ckpt-convert --to hdf5 and back: libhdf5 itself reads what was written, through ebb-hdf5-reader.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <ostream>
#include <utility>

#include "tests/support/program.h"

namespace ebb {

namespace {

using test_support::Outcome;
using test_support::run_program;
using test_support::ScratchDirectory;

struct Case {
  const char* fixture;
  const char* format;
  const char* world;
};

void PrintTo(const Case& one, std::ostream* out) {
  *out << one.fixture << " on " << one.world << " to " << one.format;
}

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

// Tensors of which nobody knows whether they are a model's come back as such, from where they lay.
TEST(ConvertHdf5Unclear, IsNoModelOnTheWayBackEither) {
  constexpr std::pair<const char*, const char*> kTrips[] = {{"dcp/zoo_w1/data", "dcp"},
                                                            {"dcp/layout_unclear/data", "dcp"},
                                                            {"dcp/layout_unclear/data", "torch"},
                                                            {"torch/dtypes_views/data", "torch"}};
  for (const auto& [fixture, home] : kTrips)
    for (const char* through : {"hdf5", "safetensors"}) {
      const ScratchDirectory scratch;
      const std::string there = scratch / "there", back = scratch / "back";
      const Outcome away = run_program("ckpt-convert", {fixture, there, "-t", through});
      ASSERT_EQ(away.exit, 0) << away.err;
      const Outcome again = run_program("ckpt-convert", {there, back, "-t", home});
      ASSERT_EQ(again.exit, 0) << again.err;
      const Outcome same = run_program("ckpt-inspect", {fixture, "--diff", back});
      EXPECT_EQ(same.exit, 0) << fixture << " " << through << " " << home << same.out;
    }
}

// A list that holds values beside tensors has no place for those that travelled under their keys.
TEST(ConvertHdf5Unclear, ListsOfTensorsAndValuesStayKeys) {
  const ScratchDirectory scratch;
  const std::string there = scratch / "there";
  ASSERT_EQ(run_program("ckpt-convert", {"dcp/zoo_w1/data", there, "-t", "hdf5"}).exit, 0);
  const Outcome torch = run_program("ckpt-convert", {there, scratch / "back", "-t", "torch"});
  EXPECT_EQ(torch.exit, 0) << torch.err;
}

// Fixtures whose keys are what the format's own writer would make of names, groups and steps.
INSTANTIATE_TEST_SUITE_P(
    Cases, ConvertHdf5,
    testing::Values(Case{"dcp/zoo_w1", "dcp", "1"}, Case{"dcp/zoo_w1", "dcp", "3"},
                    Case{"dcp/fsdp2_w3_bf16_fp32_master", "dcp", "2"},
                    Case{"safetensors/all_dtypes", "safetensors", "1"},
                    Case{"safetensors/all_dtypes", "safetensors", "3"},
                    Case{"hdf5/plain", "hdf5", "1"}, Case{"hdf5/plain", "hdf5", "4"},
                    Case{"hdf5/vds_two_ranks", "hdf5", "3"},
                    Case{"hdf5/deflate_fletcher", "hdf5", "2"}),
    [](const auto& one) {
      std::string name = std::string(one.param.fixture) + "_on_" + one.param.world;
      std::ranges::replace(name, '/', '_');
      return name;
    });

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

// '%' begins a pattern in the names of a virtual dataset's sources.
TEST(ConvertHdf5Names, MayHavePercentSigns) {
  const ScratchDirectory scratch;
  const std::string source = scratch / "model.safetensors", there = scratch / "there",
                    back = scratch / "back";
  const std::string header = R"({"100%.w":{"dtype":"F32","shape":[6],"data_offsets":[0,24]},)"
                             R"("%b%%d":{"dtype":"F32","shape":[3,2],"data_offsets":[24,48]}})";
  {
    std::ofstream out(source, std::ios::binary);
    const std::uint64_t length = header.size();
    out.write(reinterpret_cast<const char*>(&length), sizeof(length));
    out << header << "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKL";
  }
  const Outcome written =
      run_program("ckpt-convert", {source, there, "--to", "hdf5", "--world-size", "3"});
  ASSERT_EQ(written.exit, 0) << written.err;
  ASSERT_EQ(run_program("ckpt-convert", {there, back, "--to", "safetensors"}).exit, 0);
  const Outcome compared = run_program("ckpt-inspect", {source, "--diff", back});
  EXPECT_EQ(compared.exit, 0) << compared.out;
}

// A safetensors file of tensors that take one chunk, several, and more than a node of the index
// has; with bytes that say where they are.
void make_large(const std::string& directory) {
  struct Made {
    const char* name;
    const char* dtype;
    const char* shape;
    std::uint64_t bytes;
  };
  constexpr Made kTensors[] = {{"one", "F32", "[40,30]", 4800},
                               {"rows", "BF16", "[1500,1001]", 3003000},
                               {"deep", "F32", "[3,5,100000]", 6000000},
                               {"flat", "I64", "[1000003]", 8000024},
                               {"many", "F32", "[17825800]", 71303200},
                               {"scalar", "F64", "[]", 8},
                               {"none", "F32", "[0,7]", 0}};
  std::filesystem::create_directory(directory);
  std::string header = "{";
  std::uint64_t end = 0;
  for (const Made& made : kTensors) {
    header += std::string(end == 0 ? "" : ",") + "\"" + made.name + "\":{\"dtype\":\"" +
              made.dtype + "\",\"shape\":" + made.shape + ",\"data_offsets\":[" +
              std::to_string(end) + "," + std::to_string(end + made.bytes) + "]}";
    end += made.bytes;
  }
  header += "}";
  std::ofstream out(directory + "/model.safetensors", std::ios::binary);
  const std::uint64_t length = header.size();
  out.write(reinterpret_cast<const char*>(&length), sizeof(length));
  out << header;
  for (std::uint64_t at = 0; at < end; at += sizeof(at)) {
    const std::uint64_t word = at % 4096 < 64 ? at : 0;
    out.write(reinterpret_cast<const char*>(&word),
              static_cast<std::streamsize>(std::min<std::uint64_t>(sizeof(word), end - at)));
  }
}

std::uint64_t bytes_below(const std::string& directory) {
  std::uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    bytes += entry.file_size();
  return bytes;
}

TEST(ConvertHdf5Compressed, ChunksOfEveryKindComeBackFromOneFileAndFromSeveral) {
  const ScratchDirectory scratch;
  const std::string source = scratch / "source";
  make_large(source);
  for (const char* world : {"1", "3"}) {
    const std::string there = scratch / (std::string("there") + world);
    const Outcome written = run_program(
        "ckpt-convert", {source, there, "-t", "hdf5", "-w", world, "--compress", "zstd:1"});
    ASSERT_EQ(written.exit, 0) << written.err;
    EXPECT_LT(bytes_below(there), bytes_below(source) / 10);
    const Outcome verified = run_program("ckpt-inspect", {there, "--verify"});
    EXPECT_EQ(verified.exit, 0) << verified.out << verified.err;
    const Outcome same = run_program("ckpt-inspect", {there, "--diff", source});
    EXPECT_EQ(same.exit, 0) << same.out << same.err;
  }
}

TEST(ConvertHdf5Compressed, ValuesGroupsAndSmallTensorsArriveToo) {
  for (const char* fixture : {"hdf5/deflate_fletcher/data", "dcp/fsdp2_w3_bf16_fp32_master/data"}) {
    const ScratchDirectory scratch;
    const std::string there = scratch / "there", back = scratch / "back";
    const std::string format = std::string(fixture).substr(0, std::string(fixture).find('/'));
    for (const char* world : {"1", "2"}) {
      const Outcome written = run_program(
          "ckpt-convert", {fixture, there, "-t", "hdf5", "-w", world, "--compress", "zstd", "-f"});
      ASSERT_EQ(written.exit, 0) << written.err;
      ASSERT_EQ(run_program("ckpt-convert", {there, back, "-t", format, "-f"}).exit, 0);
      const Outcome same = run_program("ckpt-inspect", {fixture, "--diff", back});
      EXPECT_EQ(same.exit, 0) << same.out << same.err;
    }
  }
}

TEST(ConvertHdf5Compressed, VerifyFindsOneFlippedBitInAChunk) {
  const ScratchDirectory scratch;
  make_large(scratch / "source");
  const std::string out = scratch / "out", file = out + "/state.h5";
  ASSERT_EQ(
      run_program("ckpt-convert", {scratch / "source", out, "-t", "hdf5", "--compress", "zstd"})
          .exit,
      0);
  std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
  const auto middle = static_cast<std::streamoff>(std::filesystem::file_size(file) / 2);
  bytes.seekg(middle);
  const char byte = static_cast<char>(bytes.get());
  bytes.seekp(middle);
  bytes.put(static_cast<char>(byte ^ 0x10));
  bytes.close();
  EXPECT_EQ(run_program("ckpt-inspect", {out, "--verify"}).exit, 1);
}

}  // namespace

}  // namespace ebb
