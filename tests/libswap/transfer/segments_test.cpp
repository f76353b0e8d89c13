// The result does not depend on how it is cut into pieces and who makes them.
#include <gtest/gtest.h>

#include "ebb/formats/core/float_cast.h"
#include "ebb/libswap/read/digest.h"
#include "ebb/libswap/write/segments.h"
#include "ebb/libswap/write/write_checkpoint.h"
#include "tests/libswap/transfer/toy_format.h"

namespace ebb::libswap {
namespace {

using formats::Sealed;
using testing::Files;
using testing::MemoryCheckpoint;
using testing::Random;

ByteVector crcs_as_bytes(std::span<const std::uint32_t> crcs) {
  ByteVector out;
  for (const std::uint32_t crc : crcs) formats::append_le(out, crc);
  return out;
}

// A file with everything an executor must cut: elements at odd offsets, casts both ways, packed
// elements, literals, gaps, seals over several ranges, over other seals, and behind everything.
class Cutting : public ::testing::Test {
 protected:
  Cutting() {
    source_.add("w", DType::f32, {9, 11}, random_);
    source_.add("h", DType::bf16, {37}, random_);
    source_.add("q", DType::f4, {7, 5}, random_);
    source_.add("z", DType::c128, {6}, random_);
    source_.add("w", DType::f16, {9, 11}, random_);
    source_.add_chunk(0, {{0, 0}, {9, 4}}, 0);
    source_.add_chunk(0, {{0, 4}, {5, 7}}, 1);
    source_.add_chunk(0, {{5, 4}, {4, 7}}, 2);
    for (std::uint32_t t = 1; t < 5; ++t)
      source_.add_chunk(t, formats::whole(source_.tensor(t).shape), 0);
    for (std::size_t i = 0; i < 9 * 11; ++i) source_.bytes(0)[4 * i + 3] &= std::byte{0x3f};
    formats::cast_floats(DType::f32, source_.bytes(0), DType::f16, source_.bytes(4));
    make_file();
    plan_.files.push_back(testing::literal_file("empty", ""));
    plan_.commit_files = {testing::literal_file("meta/index", "a commit file of some bytes")};
    plan_.derived = {{4, 0}};
  }

  void make_file() {
    wanted_ = {};
    literal("head of the file");
    gap(3);
    data({0, {{0, 0}, {4, 11}}}, source_.elements(0, {{0, 0}, {4, 11}}));
    seal({{2, 9}, {16, wanted_.size() - 16}});
    literal("x");
    data({0, {{4, 0}, {5, 11}}}, source_.elements(0, {{4, 0}, {5, 11}}));
    ByteVector narrow(9 * 11 * 2);
    formats::cast_floats(DType::f32, source_.bytes(0), DType::bf16, narrow);
    data({0, formats::whole({9, 11}), DType::bf16}, narrow);
    ByteVector wide(37 * 4);
    formats::cast_floats(DType::bf16, source_.bytes(1), DType::f32, wide);
    const std::uint64_t before = wanted_.size();
    data({1, formats::whole({37}), DType::f32}, wide);
    seal({{before, wanted_.size() - before}});
    // Over the seal just made, too.
    const std::uint64_t last = wanted_.size() - 4;
    data({2, formats::whole({7, 5})}, source_.bytes(2));
    data({3, {{1}, {5}}}, source_.elements(3, {{1}, {5}}));
    seal({{last, wanted_.size() - last}});
    data({3, {{0}, {1}}}, source_.elements(3, {{0}, {1}}));
    seal({{2, 9}, {before, last - before}});
    file_.name = "data/all";
    file_.size = wanted_.size() + 6;
    wanted_.resize(file_.size);
    plan_.files.insert(plan_.files.begin(), file_);
  }
  void literal(std::string_view text) {
    testing::add_fragment(file_, wanted_.size(), testing::text_bytes(text));
    formats::append_text(wanted_, text);
  }
  void gap(std::size_t bytes) { wanted_.resize(wanted_.size() + bytes); }
  void data(TensorData fragment, const ByteVector& bytes) {
    testing::add_fragment(file_, wanted_.size(), std::move(fragment));
    formats::append_bytes(wanted_, bytes);
  }
  void seal(std::vector<FileRange> ranges) {
    std::vector<std::uint32_t> crcs;
    for (const FileRange& range : ranges)
      crcs.push_back(formats::crc32_zip(0, ByteView(wanted_).subspan(range.offset, range.size)));
    testing::add_fragment(file_, wanted_.size(),
                          Sealed{4 * ranges.size(), std::move(ranges), crcs_as_bytes});
    formats::append_bytes(wanted_, crcs_as_bytes(crcs));
  }

  Random random_{62};
  MemoryCheckpoint source_;
  OutputFile file_;
  EmitPlan plan_;
  ByteVector wanted_;
  std::shared_ptr<MemoryDisk> disk_ = MemoryDisk::create(std::uint64_t{16} << 20);
  std::unique_ptr<IoQueue> queue_ = testing::queue_on(disk_);
};

TEST_F(Cutting, GivesTheSameFilesForAnyPieceSizeAndAnyNumberOfWorkers) {
  ASSERT_TRUE(queue_->backend().make_directory("/out"));
  for (const std::uint64_t piece : {1u, 2u, 3u, 5u, 7u, 16u, 61u, 64u, 500u, 4096u, 4194304u})
    for (const std::uint32_t workers : {1u, 2u, 5u}) {
      const auto report = write_checkpoint(
          *queue_, source_, plan_, "/out/ckpt",
          {.overwrite = Overwrite::replace, .workers = workers, .segment_bytes = piece});
      ASSERT_TRUE(report) << report.error().message << ", pieces of " << piece;
      const Files files = testing::files_below(*queue_, "/out/ckpt");
      ASSERT_EQ(files.at("data/all"), wanted_) << piece << " bytes, " << workers << " workers";
      EXPECT_EQ(files.at("meta/index"), testing::text_bytes("a commit file of some bytes"));
      EXPECT_EQ(files.at("empty"), ByteVector());
      for (std::uint32_t t = 0; t < 4; ++t)
        EXPECT_EQ(report->fingerprints[t], *fingerprint_of(source_, source_.tensor(t))) << piece;
    }
}

TEST_F(Cutting, FindsWhatReadersWouldDeriveDifferentlyWhereverThePiecesEnd) {
  ASSERT_TRUE(queue_->backend().make_directory("/out"));
  source_.bytes(4)[77] ^= std::byte{4};
  for (const std::uint64_t piece : {3u, 64u, 4194304u}) {
    const auto report =
        write_checkpoint(*queue_, source_, plan_, "/out/ckpt", {.segment_bytes = piece});
    ASSERT_FALSE(report);
    EXPECT_EQ(report.error().code, Code::unsupported) << report.error().message;
    EXPECT_TRUE(queue_->backend().list("/out")->empty());
  }
}

TEST_F(Cutting, FailsCleanlyWhereverAReadFails) {
  ASSERT_TRUE(queue_->backend().make_directory("/out"));
  for (int at = 1; at < 40; ++at) {
    source_.fail_on_read(at);
    const auto report =
        write_checkpoint(*queue_, source_, plan_, "/out/ckpt", {.workers = 3, .segment_bytes = 64});
    ASSERT_FALSE(report) << at;
    EXPECT_EQ(report.error().message, "shard.bin:77: checksum does not match");
    EXPECT_TRUE(queue_->backend().list("/out")->empty());
  }
}

TEST_F(Cutting, StopsInTheMiddleWithoutATrace) {
  ASSERT_TRUE(queue_->backend().make_directory("/out"));
  for (const std::uint64_t at : {64u, 256u, 700u}) {
    std::atomic<bool> cancel = false;
    const auto report = write_checkpoint(*queue_, source_, plan_, "/out/ckpt",
                                         {.workers = 3,
                                          .segment_bytes = 64,
                                          .cancel = &cancel,
                                          .progress = [&](const WriteProgress& now) {
                                            if (now.bytes_done >= at) cancel.store(true);
                                          }});
    ASSERT_FALSE(report);
    EXPECT_EQ(report.error().code, Code::cancelled);
    EXPECT_TRUE(queue_->backend().list("/out")->empty());
  }
}

TEST_F(Cutting, WritesManySmallFilesMoreThanMayBeOpen) {
  ASSERT_TRUE(queue_->backend().make_directory("/out"));
  EmitPlan plan;
  Files wanted;
  for (int i = 0; i < 1000; ++i) {
    plan.files.push_back(testing::literal_file("f" + std::to_string(i), std::to_string(i * i)));
    wanted["f" + std::to_string(i)] = testing::text_bytes(std::to_string(i * i));
  }
  const auto report =
      write_checkpoint(*queue_, source_, plan, "/out/ckpt", {.verify = Verify::none, .workers = 3});
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(testing::files_below(*queue_, "/out/ckpt"), wanted);
}

TEST(Segments, CoverEveryFileInOrder) {
  std::vector<OutputFile> files(4);
  files[0].size = 10;
  files[2].size = 8;
  files[3].size = 3;
  const Segments segments(files, 4, Cut::ranges);
  ASSERT_EQ(segments.count(), 7u);
  std::vector<std::array<std::uint64_t, 4>> seen;
  for (std::uint64_t i = 0; i < segments.count(); ++i) {
    const Segment segment = segments.at(i);
    EXPECT_EQ(segment.index, i);
    seen.push_back({segment.file, segment.number, segment.offset, segment.size});
  }
  EXPECT_EQ(seen, (std::vector<std::array<std::uint64_t, 4>>{{0, 0, 0, 4},
                                                             {0, 1, 4, 4},
                                                             {0, 2, 8, 2},
                                                             {1, 0, 0, 0},
                                                             {2, 0, 0, 4},
                                                             {2, 1, 4, 4},
                                                             {3, 0, 0, 3}}));
}

TEST(Segments, AreRunsOfWholeItemsWhereItemsAreCut) {
  std::vector<OutputFile> files(2);
  files[0].size = 45;
  for (const FileRange& item :
       std::vector<FileRange>{{0, 4}, {4, 6}, {10, 1}, {11, 30}, {41, 0}, {41, 4}})
    files[0].items.push_back({item});
  const Segments segments(files, 10, Cut::items);
  ASSERT_EQ(segments.count(), 5u);
  const auto is = [&](std::uint64_t index, const Segment& wanted) {
    const Segment segment = segments.at(index);
    EXPECT_EQ(segment.index, index);
    EXPECT_EQ(
        std::tuple(segment.file, segment.offset, segment.size, segment.first_item, segment.items),
        std::tuple(wanted.file, wanted.offset, wanted.size, wanted.first_item, wanted.items))
        << index;
  };
  is(0, {0, 0, 0, 0, 10, 0, 2});
  is(1, {1, 0, 1, 10, 1, 2, 1});
  is(2, {2, 0, 2, 11, 30, 3, 1});
  is(3, {3, 0, 3, 41, 4, 4, 2});
  is(4, {4, 1, 0, 0, 0, 0, 0});  // somebody makes the empty file
}

}  // namespace
}  // namespace ebb::libswap
