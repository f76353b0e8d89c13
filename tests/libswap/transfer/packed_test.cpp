// Shard files that are compressed item by item: each item is one frame, lies where the commit files
// say, and holds what the plan has for it, whatever cuts, fails or interrupts the writing.
#include <gtest/gtest.h>

#include <zstd.h>

#include <cerrno>

#include "ebb/formats/core/decompress.h"
#include "ebb/libswap/read/digest.h"
#include "ebb/libswap/write/packed_segments.h"
#include "ebb/libswap/write/plan_check.h"
#include "tests/libswap/transfer/interrupted.h"

namespace ebb::libswap {
namespace {

using formats::ItemPlaces;
using testing::Files;

ByteVector bytes_of_places(std::span<const FileRange> places) {
  ByteVector numbers;
  for (const FileRange& place : places) {
    formats::append_le(numbers, place.offset);
    formats::append_le(numbers, place.size);
  }
  return numbers;
}

// A commit file that says where everything lies, and one that says nothing.
std::vector<OutputFile> indexes(const ItemPlaces& places) {
  ByteVector numbers;
  for (const auto& of_file : places) formats::append_bytes(numbers, bytes_of_places(of_file));
  return {testing::literal_file("meta/index", formats::text_of(numbers)),
          testing::literal_file(".done", "done")};
}

// Each tensor's part with its seal is an item, and each literal.
EmitPlan packed(EmitPlan plan, const Catalog& content, int level = 3) {
  ItemPlaces places;
  for (OutputFile& file : plan.files) {
    std::vector<FileRange>& of_file = places.emplace_back();
    for (const Fragment& fragment : file.fragments) {
      const std::uint64_t end = fragment.offset + size_of(fragment, content);
      if (std::holds_alternative<formats::Sealed>(fragment.data))
        of_file.back().size = end - of_file.back().offset;
      else
        of_file.push_back({fragment.offset, end - fragment.offset});
    }
    for (const FileRange& place : of_file) file.items.push_back({place});
  }
  plan.packing = formats::Packing{{formats::Codec::zstd, level}, indexes};
  plan.commit_files = indexes(places);
  return plan;
}

// The same, but that each file says itself where its items are, and every third is as it is.
EmitPlan headed(EmitPlan plan) {
  plan.packing->commit_files = nullptr;
  for (OutputFile& file : plan.files) {
    const std::uint64_t size = 16 * file.items.size();
    file.size += size;
    for (Fragment& fragment : file.fragments) {
      fragment.offset += size;
      if (auto* sealed = std::get_if<formats::Sealed>(&fragment.data))
        for (FileRange& range : sealed->over) range.offset += size;
    }
    for (std::size_t i = 0; i < file.items.size(); ++i) {
      file.items[i].place.offset += size;
      if (i % 3 == 1) file.items[i].pack = formats::Pack::as_it_is;
    }
    if (size > 0)
      file.head = formats::PackedHead{
          size, [](std::span<const FileRange> places) { return bytes_of_places(places); }};
  }
  return plan;
}

ByteVector decoded(const formats::PackedItem& item, ByteView stored, const std::string& file) {
  if (item.pack == formats::Pack::as_it_is) return {stored.begin(), stored.end()};
  EXPECT_EQ(ZSTD_findFrameCompressedSize(stored.data(), stored.size()), stored.size());
  EXPECT_EQ(ZSTD_getFrameContentSize(stored.data(), stored.size()), item.place.size);
  auto plain = formats::unzstd(stored, item.place.size, file);
  EXPECT_TRUE(plain) << plain.error().message;
  return plain ? *std::move(plain) : ByteVector();
}

// The items as the commit file or the head finds them, decoded, each at its place in the plan's
// file without a head.
Files unpacked(const EmitPlan& plan, const Files& written) {
  Files files;
  formats::ByteReader index(written.at("meta/index"));
  for (const OutputFile& file : plan.files) {
    const ByteVector& bytes = written.at(file.name);
    formats::ByteReader head(bytes);
    formats::ByteReader& told = file.head ? head : index;
    const std::uint64_t skipped = file.head ? file.head->size : 0;
    ByteVector& plain = files[file.name];
    plain.resize(file.size - skipped);
    std::vector<FileRange> places = {{0, skipped}};
    for (const formats::PackedItem& item : file.items) {
      const FileRange place{*told.number<std::uint64_t>(), *told.number<std::uint64_t>()};
      EXPECT_LE(place.offset + place.size, bytes.size());
      const ByteVector part =
          decoded(item, ByteView(bytes).subspan(place.offset, place.size), file.name);
      EXPECT_EQ(part.size(), item.place.size);
      std::ranges::copy(part,
                        plain.begin() + static_cast<std::ptrdiff_t>(item.place.offset - skipped));
      places.push_back(place);
    }
    std::ranges::sort(places);
    for (std::size_t i = 1; i < places.size(); ++i)
      EXPECT_LE(places[i - 1].offset + places[i - 1].size, places[i].offset) << file.name;
    EXPECT_EQ(places.back().offset + places.back().size, bytes.size()) << file.name;
  }
  return files;
}

class Packed : public testing::Interrupted {
 protected:
  Packed() : Interrupted(3, 83, std::uint64_t{128} << 20) {
    source_.add("a", DType::f32, {13, 7}, random_);
    source_.add("b", DType::bf16, {4, 3}, random_);
    source_.add("none", DType::f32, {0, 4}, random_);
    source_.add("scalar", DType::f64, {}, random_);
    source_.add("zeros", DType::f32, {300}, random_);
    std::ranges::fill(source_.bytes(4), std::byte{0});
    for (std::uint32_t t = 0; t < source_.catalog().tensors.size(); ++t)
      source_.add_chunk(t, formats::whole(source_.tensor(t).shape), 0);
    plan_for(2);
  }

  void plan_for(std::uint32_t world) {
    plain_ = testing::toy_plan(source_.catalog(),
                               testing::layout_of(Policy::rows, world, source_.catalog()));
    plan_ = packed(plain_, source_.catalog());
  }
  void expect_result(IoQueue& io, const Result<WriteReport>& report) override {
    ASSERT_TRUE(report) << report.error().message;
    const Files written = testing::files_below(io, "/out/ckpt");
    ASSERT_EQ(written.size(), plan_.files.size() + plan_.commit_files.size());
    Files wanted = testing::expected_files(plain_, source_);
    for (const OutputFile& file : plain_.commit_files) wanted.erase(file.name);
    ASSERT_EQ(unpacked(plan_, written), wanted);
    std::uint64_t bytes = 0;
    for (const auto& [name, content] : written) bytes += content.size();
    ASSERT_EQ(report->bytes, bytes);
    ASSERT_EQ(report->plain_bytes, bytes_of_all());
    ASSERT_EQ(*io.backend().list("/out"), std::vector<std::string>{"ckpt"});
    for (std::uint32_t t = 0; t < source_.catalog().tensors.size(); ++t)
      ASSERT_EQ(report->fingerprints[t], *fingerprint_of(source_, source_.tensor(t)));
  }
  EmitPlan plain_;
};

TEST_F(Packed, EveryItemIsOneFrameAndLiesWhereTheCommitFileSays) {
  for (const std::uint64_t piece : {1u, 64u, 500u, 4096u, 1u << 20})
    for (const std::uint32_t world : {1u, 3u}) {
      plan_for(world);
      WriteOptions cut = options();
      cut.segment_bytes = piece;
      cut.overwrite = Overwrite::replace;
      expect_result(*queue_, write(*queue_, cut));
      ASSERT_FALSE(HasFatalFailure()) << "pieces of " << piece << " for " << world;
    }
}

TEST_F(Packed, AHeadSaysWhereTheItemsOfItsFileLie) {
  for (const std::uint64_t piece : {1u, 64u, 4096u})
    for (const std::uint32_t workers : {1u, 4u}) {
      plan_for(3);
      plan_ = headed(std::move(plan_));
      WriteOptions cut = options();
      cut.segment_bytes = piece;
      cut.workers = workers;
      cut.overwrite = Overwrite::replace;
      expect_result(*queue_, write(*queue_, cut));
      ASSERT_FALSE(HasFatalFailure()) << "pieces of " << piece << ", " << workers << " workers";
    }
}

TEST_F(Packed, ItemsLargerThanAWindowAndThanAWorkersBufferStream) {
  // A seal on the border of a window, and two items that only one worker may hold at a time.
  const std::uint64_t large = PackedSegments::kKept / 4 + 1000;
  for (const std::uint64_t elems : {std::uint64_t{(1 << 18)} - 1, large, large + 1}) {
    const std::uint32_t t = source_.add("large", DType::f32, {elems}, random_);
    std::fill(source_.bytes(t).begin() + 4000, source_.bytes(t).end(), std::byte{7});
    source_.add_chunk(t, formats::whole({elems}), 0);
  }
  source_.catalog().tensors.back().name = "larger";
  plan_for(1);
  WriteOptions wide = options();
  wide.segment_bytes = std::uint64_t{1} << 20;
  expect_result(*queue_, write(*queue_, wide));
  EXPECT_LE(source_.largest_read(), formats::BoxReader::kMaxRun);
}

TEST_F(Packed, TheSourceIsReadOnce) {
  std::uint64_t bytes = 0;
  for (std::uint32_t t = 0; t < source_.catalog().tensors.size(); ++t)
    bytes += source_.bytes(t).size();
  WriteOptions whole = options();
  whole.segment_bytes = 1 << 20;
  ASSERT_TRUE(write(*queue_, whole));
  EXPECT_EQ(source_.bytes_read(), bytes);
}

class PackedCrash : public Packed, public ::testing::WithParamInterface<bool> {};

TEST_P(PackedCrash, IsGoneOnAfterBeforeAnyOperationWhateverTheDiskKept) {
  if (GetParam()) plan_ = headed(std::move(plan_));
  std::uint64_t gone_on = 0;
  crash_everywhere(4, gone_on);
  EXPECT_GT(gone_on, 30u);
}
INSTANTIATE_TEST_SUITE_P(HeadedOrNot, PackedCrash, ::testing::Bool());

TEST_F(Packed, WhatIsInterruptedIsGoneOnWithAtTheSameLevelOnly) {
  for (const bool same : {true, false}) {
    interrupt(bytes_of_all() / 2);
    if (!same) plan_ = packed(plain_, source_.catalog(), 4);
    const auto report = write(*queue_, options());
    expect_result(*queue_, report);
    EXPECT_EQ(report->bytes_found > 0, same);
    ASSERT_TRUE(remove_tree(queue_->backend(), "/out/ckpt"));
  }
}

TEST_F(Packed, AHeadIsMadeAgainBecauseItemsMayLieElsewhereThen) {
  plan_ = headed(std::move(plan_));
  const Segments segments(plan_.files, kSegment, Cut::items);
  std::uint64_t shards = 0;
  std::uint64_t heads = 0;
  for (std::uint64_t i = 0; i < segments.count(); ++i) {
    const Segment segment = segments.at(i);
    shards += segment.size;
    heads += segment.items == 0 ? segment.size : 0;
  }
  ASSERT_GT(heads, 0u);
  interrupt(shards);
  const auto report = write(*queue_, options());
  expect_result(*queue_, report);
  EXPECT_LE(report->bytes_found, shards - heads);
  EXPECT_GT(report->bytes_found, 0u);
}

TEST_F(Packed, NoPlainAttemptIsGoneOnWith) {
  interrupt(bytes_of_all() / 2);
  std::swap(plan_, plain_);
  const auto report = write(*queue_, options());
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->bytes_found, 0u);
  EXPECT_EQ(testing::files_below(*queue_, "/out/ckpt"), testing::expected_files(plan_, source_));
}

TEST_F(Packed, AnyFailingOperationLeavesNothing) {
  for (const int error : {ENOSPC, EIO})
    for (std::uint64_t at = 0;; ++at) {
      const auto disk = disk_->after({.unsynced = PowerLoss::Unsynced::kept});
      const auto faults = std::make_shared<FaultPlan>();
      faults->add({.on = FaultOn::durable, .at = at, .error = error});
      const auto queue = testing::queue_over(make_fault_backend(make_memory_backend(disk), faults));
      const auto report = write(*queue, options());
      if (report && faults->durable_operations() <= at) break;  // there is no at-th operation
      const std::vector<std::string> names = *queue->backend().list("/out");
      if (report || names == std::vector<std::string>{"ckpt"}) continue;  // it was published
      EXPECT_EQ(report.error().code, error == EIO ? Code::io : Code::no_space)
          << at << ": " << report.error().message;
      EXPECT_TRUE(names.empty()) << at;
    }
}

TEST_F(Packed, WhatReadingTheSourceSaysIsPassedOn) {
  source_.fail_on_read(3);
  const auto report = write(*queue_, options());
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().message, "shard.bin:77: checksum does not match");
  EXPECT_TRUE(queue_->backend().list("/out")->empty());
}

TEST_F(Packed, HardLevelsTakeFewerWorkersOrAreRefused) {
  plan_ = packed(plain_, source_.catalog(), 19);
  WriteOptions small = options();
  small.memory_bytes = 1000;
  const auto refused = write(*queue_, small);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::usage);
  EXPECT_TRUE(refused.error().hint.starts_with("--memory ")) << refused.error().hint;
  expect_result(*queue_, write(*queue_, options()));
}

TEST_F(Packed, RefusesItemsThatDoNotHoldTheirFragments) {
  const EmitPlan good = plan_;
  const auto expect = [&](std::string_view why, auto change) {
    plan_ = good;
    change(plan_.files[0]);
    const auto report = write(*queue_, options());
    ASSERT_FALSE(report) << why;
    EXPECT_EQ(report.error().code, Code::layout);
    EXPECT_NE(report.error().message.find(why), std::string::npos) << report.error().message;
  };
  expect("does not hold its fragments whole", [](OutputFile& file) { --file.items[1].place.size; });
  expect("a fragment lies outside", [](OutputFile& file) { file.items.pop_back(); });
  expect("begins inside what is before", [](OutputFile& file) { file.items[1].place.offset = 0; });
  expect("ends beyond the file", [](OutputFile& file) { file.items.back().place.size += 100; });
  expect("seals another one", [](OutputFile& file) {
    const FileRange item = file.items[1].place;
    file.items[1].place.size -= 4;
    file.items.insert(file.items.begin() + 2, {{item.offset + item.size - 4, 4}});
  });
}

}  // namespace
}  // namespace ebb::libswap
