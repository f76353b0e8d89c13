// Checkpoints of what lies in the caller's memory, through ebb.h.
#include <gtest/gtest.h>

#include <numeric>

#include "tests/bindings/c/connected_ranks.h"
#include "tests/support/program.h"

namespace ebb::c {
namespace {

constexpr std::uint64_t kRows = 7, kRow = 5;

// A matrix that is cut into rows, and a vector that every rank has.
struct Tensors {
  const std::uint64_t shape[2] = {kRows, kRow}, all[1] = {3};
  std::uint64_t offsets[2] = {0, 0}, extents[2] = {kRows, kRow};
  std::vector<float> matrix = std::vector<float>(kRows * kRow), vector = {1, 2, 3};
  ebb_saved saved[2] = {};
  ebb_save request = {};

  explicit Tensors(const std::string& path, std::uint32_t rank = 0, std::uint32_t world = 1)
      : path_(path) {
    std::iota(matrix.begin(), matrix.end(), 0.5f);
    const std::uint64_t rows = (kRows + world - 1) / world;
    offsets[0] = rank * rows;
    extents[0] = std::min(rows, kRows - offsets[0]);
    saved[0] = {sizeof(ebb_saved),
                "a.w",
                nullptr,
                shape,
                2,
                EBB_F32,
                offsets,
                extents,
                matrix.data() + offsets[0] * kRow};
    saved[1] = {sizeof(ebb_saved), "v",     "exp_avg", all,          1,
                EBB_F32,           nullptr, nullptr,   vector.data()};
    request = {sizeof(request), "dcp", path_.c_str(), saved, 2, 0, 13};
  }
  Tensors(const Tensors&) = delete;
  Tensors& operator=(const Tensors&) = delete;

 private:
  const std::string path_;
};

void check(const std::string& path) {
  ebb_checkpoint* checkpoint = nullptr;
  ASSERT_EQ(ebb_checkpoint_open(path.c_str(), &checkpoint), EBB_DONE) << last_message();
  char* json = nullptr;
  ASSERT_EQ(ebb_checkpoint_about(checkpoint, &json), EBB_DONE) << last_message();
  const std::string about = json;
  ebb_free(json);
  const Tensors want("");
  std::vector<float> matrix(kRows * kRow), vector(3);
  const bool matrix_first = about.find("[\"a.w\"") < about.find("[\"v\"");
  const ebb_wanted wanted[] = {
      {matrix_first ? 0u : 1u, nullptr, nullptr, matrix.data(), matrix.size() * 4},
      {matrix_first ? 1u : 0u, nullptr, nullptr, vector.data(), 12}};
  ASSERT_EQ(ebb_checkpoint_read(checkpoint, wanted, 2, 0), EBB_DONE) << last_message() << about;
  EXPECT_EQ(matrix, want.matrix);
  EXPECT_EQ(vector, want.vector);
  EXPECT_EQ(ebb_checkpoint_close(checkpoint), EBB_DONE);
}

TEST(CSave, WritesWhatIsReadAgain) {
  const test_support::ScratchDirectory scratch;
  for (const char* const format : {"dcp", "safetensors", "ebb", "torch", "torch-checkpointing"}) {
    Tensors tensors(scratch / format);
    tensors.request.format = format;
    std::uint64_t bytes = 0;
    ASSERT_EQ(ebb_checkpoint_save(&tensors.request, nullptr, &bytes), EBB_DONE) << last_message();
    EXPECT_GT(bytes, kRows * kRow * 4);
    check(scratch / format);
    EXPECT_EQ(ebb_checkpoint_save(&tensors.request, nullptr, nullptr), EBB_USAGE);
    EXPECT_NE(last_message().find("exists already"), std::string::npos) << last_message();
  }
}

TEST(CSave, RanksWriteTheirRows) {
  const test_support::ScratchDirectory scratch;
  on_ranks([&](std::uint32_t rank, ebb_ranks* ranks) {
    Tensors tensors(scratch / "dcp", rank, kWorld);
    EXPECT_EQ(ebb_checkpoint_save(&tensors.request, ranks, nullptr), EBB_DONE) << last_message();
  });
  check(scratch / "dcp");
}

TEST(CSave, WhatOneRankLacksNobodySaves) {
  const test_support::ScratchDirectory scratch;
  on_ranks([&](std::uint32_t rank, ebb_ranks* ranks) {
    Tensors tensors(scratch / "lacks", rank, kWorld);
    if (rank == 1) tensors.saved[0].data = nullptr;
    const ebb_status status = ebb_checkpoint_save(&tensors.request, ranks, nullptr);
    EXPECT_EQ(status, rank == 1 ? EBB_INCOMPLETE : EBB_PEER) << last_message();
    Tensors others(scratch / "others", rank, kWorld);
    if (rank == 1) others.saved[1].name = "u";
    EXPECT_EQ(ebb_checkpoint_save(&others.request, ranks, nullptr), EBB_LAYOUT) << last_message();
  });
  EXPECT_FALSE(std::filesystem::exists(scratch / "lacks"));
  EXPECT_FALSE(std::filesystem::exists(scratch / "others"));
}

TEST(CSave, RefusesByName) {
  const test_support::ScratchDirectory scratch;
  const auto refused = [&](auto change, ebb_status status, const char* says) {
    Tensors tensors(scratch / "x");
    change(tensors);
    EXPECT_EQ(ebb_checkpoint_save(&tensors.request, nullptr, nullptr), status) << says;
    EXPECT_NE(last_message().find(says), std::string::npos) << last_message();
  };
  refused([](Tensors& t) { t.request.format = "zip"; }, EBB_USAGE, "no format is called \"zip\"");
  refused([](Tensors& t) { t.request.path = nullptr; }, EBB_USAGE, "path is NULL");
  refused([](Tensors& t) { t.saved[1].name = nullptr; }, EBB_USAGE, "tensor 1: name is NULL");
  refused([](Tensors& t) { t.saved[0].shape = nullptr; }, EBB_USAGE, "w: shape is NULL");
  refused([](Tensors& t) { t.saved[0].offsets = nullptr; }, EBB_USAGE, "w: offsets is NULL");
  refused([](Tensors& t) { t.saved[0].dtype = 99; }, EBB_USAGE, "w: dtype = 99");
  refused([](Tensors& t) { t.offsets[0] = 1; }, EBB_LAYOUT, "w");
  refused([](Tensors& t) { t.extents[0] = std::uint64_t{1} << 62; }, EBB_LIMIT, "w has more bytes");
  refused([](Tensors& t) { t.saved[0].data = nullptr; }, EBB_INCOMPLETE, "w");
  EXPECT_EQ(ebb_checkpoint_save(nullptr, nullptr, nullptr), EBB_USAGE);
  EXPECT_FALSE(std::filesystem::exists(scratch / "x"));
}

}  // namespace
}  // namespace ebb::c
