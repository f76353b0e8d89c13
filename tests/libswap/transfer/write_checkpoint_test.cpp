#include "ebb/libswap/write/write_checkpoint.h"

#include <gtest/gtest.h>

#include "ebb/formats/core/float_cast.h"
#include "ebb/libswap/read/digest.h"
#include "ebb/libswap/testing/fault_backend.h"
#include "ebb/libswap/write/plan_check.h"
#include "tests/libswap/transfer/toy_format.h"

namespace ebb::libswap {
namespace {

using testing::Fickle;
using testing::Files;
using testing::layout_of;
using testing::MemoryCheckpoint;
using testing::Random;

// A source cut by ZeRO-3 over 3 ranks, a disk with the directory /out, and a plan to write rows
// over 2 ranks.
class WriteCheckpoint : public ::testing::Test {
 protected:
  WriteCheckpoint() {
    source_.add("a", DType::f32, {13, 7}, random_);
    source_.add("b", DType::bf16, {2, 3, 5}, random_);
    source_.add("scalar", DType::i64, {}, random_);
    source_.add("none", DType::f32, {0, 4}, random_);
    source_.cut(layout_of(Policy::zero3, 3, source_.catalog()), random_);
    plan_ = testing::toy_plan(source_.catalog(), layout_of(Policy::rows, 2, source_.catalog()));
    EXPECT_TRUE(queue_->backend().make_directory("/out"));
    EXPECT_TRUE(queue_->backend().sync_directory("/"));
  }

  Result<WriteReport> write(const WriteOptions& options = {}) {
    return write_checkpoint(*queue_, source_, plan_, "/out/ckpt", options);
  }
  Files written() { return testing::files_below(*queue_, "/out/ckpt"); }
  Files expected() { return testing::expected_files(plan_, source_); }
  std::vector<std::string> beside() { return *queue_->backend().list("/out"); }
  // From here on, operations go wrong as planned.
  void inject(const Fault& fault) {
    faults_->add(fault);
    queue_ = testing::queue_over(make_fault_backend(make_memory_backend(disk_), faults_));
  }
  void add_large_tensor() {  // more than all buffers of a FileStream hold
    source_.add("large", DType::f32, {2300, 2048}, random_);
    source_.add_chunk(4, formats::whole({2300, 2048}), 0);
    plan_ = testing::toy_plan(source_.catalog(), layout_of(Policy::zero12, 1, source_.catalog()));
  }

  Random random_{61};
  MemoryCheckpoint source_;
  EmitPlan plan_;
  std::shared_ptr<MemoryDisk> disk_ = MemoryDisk::create(testing::kDisk);
  std::shared_ptr<FaultPlan> faults_ = std::make_shared<FaultPlan>();
  std::unique_ptr<IoQueue> queue_ = testing::queue_on(disk_);
};

TEST_F(WriteCheckpoint, WritesThePlanByteForByteFromAnyCutToAnyLayout) {
  for (const Policy from : {Policy::zero12, Policy::zero3, Policy::rows})
    for (const Policy to : {Policy::zero12, Policy::zero12_boundary, Policy::zero3, Policy::rows})
      for (const std::uint32_t world : {1u, 2u, 5u}) {
        source_.cut(layout_of(from, 4, source_.catalog()), random_);
        plan_ = testing::toy_plan(source_.catalog(), layout_of(to, world, source_.catalog()));
        const auto report = write({.overwrite = Overwrite::replace});
        ASSERT_TRUE(report) << report.error().message;
        ASSERT_EQ(written(), expected()) << name_of(from) << " to " << name_of(to);
        for (std::uint32_t t = 0; t < 4; ++t)
          EXPECT_EQ(report->fingerprints[t], *fingerprint_of(source_, source_.tensor(t)));
        EXPECT_EQ(report->files, plan_.files.size() + 2);
        EXPECT_EQ(beside(), std::vector<std::string>{"ckpt"});
      }
}

TEST_F(WriteCheckpoint, StreamsWhatIsLargerThanItsBuffers) {
  add_large_tensor();
  std::vector<std::uint64_t> seen;
  std::uint64_t total = 0;
  const auto report = write({.progress = [&](const WriteProgress& progress) {
    seen.push_back(progress.bytes_done);
    total = progress.bytes_total;
  }});
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(written(), expected());
  EXPECT_TRUE(std::ranges::is_sorted(seen));
  EXPECT_EQ(seen.back(), total);
  EXPECT_EQ(total, report->bytes);
  EXPECT_GT(seen.size(), 5u);
}

TEST_F(WriteCheckpoint, WritesToARealDirectoryAsToMemory) {
  add_large_tensor();
  for (const BackendChoice choice : {BackendChoice::automatic, BackendChoice::threads}) {
    auto chosen = open_backend(choice);
    ASSERT_TRUE(chosen) << chosen.error().message;
    const auto real = testing::queue_over(std::move(chosen->backend));
    const fs::path parent = fs::path(::testing::TempDir()) / "ebb_write_checkpoint";
    ASSERT_TRUE(remove_tree(real->backend(), parent));
    ASSERT_TRUE(real->backend().make_directory(parent));
    for (int round = 0; round < 2; ++round) {  // the second replaces the first
      const auto report = write_checkpoint(*real, source_, plan_, parent / "ckpt",
                                           {.overwrite = Overwrite::replace});
      ASSERT_TRUE(report) << report.error().message;
    }
    EXPECT_EQ(testing::files_below(*real, parent / "ckpt"), expected());
    EXPECT_EQ(*real->backend().list(parent), std::vector<std::string>{"ckpt"});
    ASSERT_TRUE(remove_tree(real->backend(), parent));
  }
}

TEST_F(WriteCheckpoint, TakesAnEmptyDirectory) {
  ASSERT_TRUE(queue_->backend().make_directory("/out/ckpt"));
  const auto report = write();
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(written(), expected());
}

TEST_F(WriteCheckpoint, APlanOfOtherDTypesIsAnotherPlan) {
  Catalog other = source_.catalog();
  other.tensors[0].dtype = DType::i32;
  EXPECT_NE(identity_of(plan_, other, 64), identity_of(plan_, source_.catalog(), 64));
}

TEST_F(WriteCheckpoint, LeavesAnExistingDestinationAsItIs) {
  ASSERT_TRUE(write());
  const Files before = written();
  source_.bytes(0)[0] ^= std::byte{1};
  const auto again = write();
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, Code::usage);
  EXPECT_EQ(again.error().message, "/out/ckpt: exists already and was left as it is");
  EXPECT_EQ(written(), before);
  ASSERT_TRUE(write({.overwrite = Overwrite::replace}));
  EXPECT_NE(written(), before);
  EXPECT_EQ(written(), expected());
  EXPECT_EQ(beside(), std::vector<std::string>{"ckpt"});
}

TEST_F(WriteCheckpoint, WithoutAFolderToLieInItSaysHowToMakeOne) {
  const auto report = write_checkpoint(*queue_, source_, plan_, "/out/run/1/ckpt", {});
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, Code::io);
  EXPECT_EQ(report.error().message, "/out/run/1/ckpt: there is no folder /out/run/1");
  EXPECT_EQ(report.error().hint, "mkdir -p /out/run/1");
  EXPECT_EQ(beside(), std::vector<std::string>{});
}

TEST_F(WriteCheckpoint, SaysBothNumbersWhenTheDiskIsTooSmall) {
  disk_ = MemoryDisk::create(20000);
  queue_ = testing::queue_on(disk_);
  ASSERT_TRUE(queue_->backend().make_directory("/out"));
  const auto report = write();
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, Code::no_space);
  std::uint64_t needed = 0;
  for (const auto& [name, bytes] : expected()) needed += bytes.size() + 4096;
  EXPECT_EQ(report.error().message,
            "/out/ckpt: needs " + std::to_string(needed) + " bytes, but /out has 20000 free");
  EXPECT_TRUE(beside().empty());
}

TEST_F(WriteCheckpoint, AnyFailingOperationLeavesNothingAndTheOldOne) {
  ASSERT_TRUE(write());
  const Files old = written();
  source_.bytes(0)[0] ^= std::byte{1};
  const std::shared_ptr<MemoryDisk> base = disk_;
  for (const bool replace : {false, true}) {
    for (std::uint64_t at = 0;; ++at) {
      disk_ = base->after({.unsynced = PowerLoss::Unsynced::kept});
      if (!replace) {
        queue_ = testing::queue_on(disk_);
        ASSERT_TRUE(remove_tree(queue_->backend(), "/out/ckpt"));
      }
      faults_ = std::make_shared<FaultPlan>();
      inject({.on = FaultOn::durable, .at = at, .error = ENOSPC});
      const auto report = write({.overwrite = Overwrite::replace});
      if (report && faults_->durable_operations() <= at) break;  // there is no at-th operation
      const Files now = written();
      const std::vector<std::string> names = beside();
      // The last operations come after publication: there the new one stays.
      const bool published = now == expected();
      EXPECT_TRUE(published || now == (replace ? old : Files())) << at;
      if (report || published) continue;
      EXPECT_EQ(report.error().code, Code::no_space) << at << ": " << report.error().message;
      EXPECT_EQ(names, replace ? std::vector<std::string>{"ckpt"} : std::vector<std::string>{})
          << at;
    }
  }
}

TEST_F(WriteCheckpoint, AFailureInTheMiddleOfALargeFileIsReportedOnce) {
  add_large_tensor();
  for (const std::uint64_t at : {0u, 2u, 4u}) {
    faults_ = std::make_shared<FaultPlan>();
    inject({.on = FaultOn::write, .at = at});
    const auto report = write();
    ASSERT_FALSE(report);
    EXPECT_EQ(report.error().code, Code::io);
    EXPECT_NE(report.error().message.find("rank0.bin"), std::string::npos)
        << report.error().message;
    EXPECT_TRUE(beside().empty());
  }
}

TEST_F(WriteCheckpoint, WhatReadingTheSourceSaysIsPassedOn) {
  source_.fail_on_read(3);
  const auto report = write();
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().message, "shard.bin:77: checksum does not match");
  EXPECT_TRUE(beside().empty());
}

TEST_F(WriteCheckpoint, StopsOnRequestWithoutATrace) {
  std::atomic<bool> cancel = false;
  const auto report = write({.cancel = &cancel, .progress = [&](const WriteProgress& progress) {
                               cancel = progress.bytes_done > 200;
                             }});
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, Code::cancelled);
  EXPECT_TRUE(beside().empty());
}

TEST_F(WriteCheckpoint, TheCallersCheckSeesTheFilesBeforeTheyArePublished) {
  const auto refused =
      write({.check = [&](const fs::path& directory, std::span<const std::uint64_t> fingerprints) {
        EXPECT_EQ(testing::files_below(*queue_, directory), expected());
        EXPECT_EQ(fingerprints.size(), 4u);
        return Result<>(Error{Code::corrupt, "not what I wanted"});
      }});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message, "not what I wanted");
  EXPECT_TRUE(beside().empty());
}

TEST_F(WriteCheckpoint, ComparesWhatWasGatheredWithTheSource) {
  Fickle source;
  source.add("a", DType::f32, {4, 2}, random_);
  source.add_chunk(0, {{0, 0}, {2, 2}}, 0);
  source.add_chunk(0, {{2, 0}, {2, 1}}, 1);  // columns: not read to where they are wanted
  source.add_chunk(0, {{2, 1}, {2, 1}}, 2);
  plan_ = testing::toy_plan(source.catalog(), layout_of(Policy::rows, 1, source.catalog()));
  const auto report = write_checkpoint(*queue_, source, plan_, "/out/ckpt", {.workers = 1});
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, Code::corrupt);
  EXPECT_EQ(report.error().message,
            "a (master): what was gathered of [0:4, 0:2] is not what the source holds");
  EXPECT_TRUE(beside().empty());
}

TEST_F(WriteCheckpoint, RefusesAPlanThatForgetsRowsAndTakesOneThatRepeatsThem) {
  const auto copy = plan_.files[1];
  plan_.files[1].name = "data/copy.bin";
  plan_.files.push_back(copy);
  const auto repeated = write();
  ASSERT_TRUE(repeated) << repeated.error().message;
  EXPECT_EQ(written(), expected());
  EXPECT_EQ(repeated->fingerprints[0], *fingerprint_of(source_, source_.tensor(0)));
  plan_.files.erase(plan_.files.begin());
  const auto forgetful = write({.overwrite = Overwrite::replace});
  ASSERT_FALSE(forgetful);
  EXPECT_EQ(forgetful.error().code, Code::layout);
  EXPECT_EQ(forgetful.error().message, "the planned files: a (master): rows 0-6 are in no shard");
}

OutputFile file_of(std::string name, std::uint64_t size, TensorData data) {
  OutputFile file = testing::literal_file(std::move(name), "");
  file.size = size;
  testing::add_fragment(file, 0, std::move(data));
  return file;
}

TEST_F(WriteCheckpoint, RoundsToTheDTypeThePlanAsksForAndTakesAWiderCopyForTheContent) {
  MemoryCheckpoint source;
  source.add("w", DType::f32, {300, 1000}, random_);
  source.add_chunk(0, formats::whole({300, 1000}), 0);
  source.add("h", DType::bf16, {6}, random_);
  source.add_chunk(1, formats::whole({6}), 0);
  plan_ = {};
  plan_.files = {file_of("w", 1200000, {0, formats::whole({300, 1000})}),
                 file_of("w16", 600000, {0, formats::whole({300, 1000}), DType::bf16}),
                 file_of("h32", 24, {1, formats::whole({6}), DType::f32})};
  const auto report = write_checkpoint(*queue_, source, plan_, "/out/ckpt", {});
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->fingerprints[1], *fingerprint_of(source, source.tensor(1)));
  Files files = written();
  ByteVector narrow(600000);
  formats::cast_floats(DType::f32, source.bytes(0), DType::bf16, narrow);
  ByteVector wide(24);
  formats::cast_floats(DType::bf16, source.bytes(1), DType::f32, wide);
  EXPECT_EQ(files["w"], source.bytes(0));
  EXPECT_EQ(files["w16"], narrow);
  EXPECT_EQ(files["h32"], wide);
}

TEST_F(WriteCheckpoint, ProvesThatWhatIsLeftOutIsWhatReadersDerive) {
  MemoryCheckpoint source;
  source.add("w", DType::f32, {40}, random_);
  source.add("w", DType::bf16, {40}, random_);
  for (std::uint32_t t = 0; t < 2; ++t) source.add_chunk(t, formats::whole({40}), 0);
  for (std::size_t i = 0; i < 40; ++i) source.bytes(0)[4 * i + 3] &= std::byte{0x3f};  // no NaN
  formats::cast_floats(DType::f32, source.bytes(0), DType::bf16, source.bytes(1));
  plan_ = {};
  plan_.files = {file_of("w", 160, {0, formats::whole({40})})};
  plan_.derived = {{1, 0}};
  const auto same = write_checkpoint(*queue_, source, plan_, "/out/ckpt", {});
  ASSERT_TRUE(same) << same.error().message;
  source.bytes(1)[7] ^= std::byte{1};
  const auto other = write_checkpoint(*queue_, source, plan_, "/out/other", {});
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().message,
            "w (master): the format keeps only w (master), and that one rounds to other values; "
            "nothing was published");
  EXPECT_TRUE(
      write_checkpoint(*queue_, source, plan_, "/out/other", {.derived = Derivation::assumed}));
}

TEST_F(WriteCheckpoint, SealsRangesThatHoldDataLiteralsAndZeros) {
  const std::uint64_t bytes = 13 * 7 * 4;
  OutputFile file = testing::literal_file("x", "abc");
  testing::add_fragment(file, 10, TensorData{0, formats::whole({13, 7})});
  const auto seal = [](std::span<const std::uint32_t> crcs) {
    ByteVector out;
    for (const std::uint32_t crc : crcs) formats::append_le(out, crc);
    return out;
  };
  testing::add_fragment(file, 20 + bytes, formats::Sealed{8, {{0, 2}, {2, 15 + bytes}}, seal});
  testing::add_fragment(file, 28 + bytes, formats::Sealed{4, {{2, 15 + bytes}}, seal});
  file.size = 32 + bytes;
  plan_.files = {file};
  const auto report = write({.verify = Verify::none});
  ASSERT_TRUE(report) << report.error().message;
  const ByteVector made = written()["x"];
  const ByteView view(made);
  const std::uint32_t second = formats::crc32_zip(0, view.subspan(2, 15 + bytes));
  EXPECT_EQ(formats::load_le<std::uint32_t>(view.subspan(20 + bytes)),
            formats::crc32_zip(0, view.first(2)));
  EXPECT_EQ(formats::load_le<std::uint32_t>(view.subspan(24 + bytes)), second);
  EXPECT_EQ(formats::load_le<std::uint32_t>(view.subspan(28 + bytes)), second);
}

TEST_F(WriteCheckpoint, RefusesNamesThatLeaveTheDirectoryOrMeet) {
  for (const std::string name : {"../x", "/x", "", "a/../../x", "a/", "."}) {
    plan_.files = {testing::literal_file(name, "")};
    EXPECT_EQ(write().error().message, "'" + name + "' cannot be a file of a checkpoint directory");
  }
  plan_.files = {testing::literal_file("x", ""), testing::literal_file("x", "")};
  EXPECT_EQ(write().error().message, "x: planned twice");
  EXPECT_TRUE(beside().empty());
}

TEST_F(WriteCheckpoint, RefusesPartsThatDoNotFit) {
  const auto message = [&](std::uint64_t size, auto... parts) {
    OutputFile file = testing::literal_file("x", "");
    file.size = size;
    (testing::add_fragment(file, parts.first, parts.second), ...);
    plan_.files = {file};
    const auto report = write({.verify = Verify::none});
    return report ? "written" : report.error().message;
  };
  const auto at = [](std::uint64_t offset, auto data) { return std::pair(offset, data); };
  EXPECT_EQ(message(2, at(0, testing::text_bytes("abc"))),
            "x:0: the planned part of 3 bytes ends beyond the file's 2");
  EXPECT_EQ(message(9, at(0, testing::text_bytes("abc")), at(2, testing::text_bytes("d"))),
            "x:2: the planned part begins inside the one before it");
  EXPECT_EQ(message(9, at(1, formats::Sealed{4, {{0, 2}}, {}})),
            "x:1: the planned part seals data that is not there");
  EXPECT_EQ(message(9, at(1, formats::Sealed{4, {}, {}})), "x:1: the planned part seals nothing");
  EXPECT_EQ(message(9, at(5, formats::Sealed{4, {{0, 3}, {2, 2}}, {}})),
            "x:5: the planned part seals data that overlaps what another one seals");
  EXPECT_EQ(message(9, at(0, TensorData{2, {}, DType::f32})),
            "x:0: the planned part would cast scalar (master) from I64 to F32");
  EXPECT_EQ(message(9, at(0, TensorData{7, {}})), "x:0: the planned part is of tensor 7 of 4");
  EXPECT_EQ(message(9, at(0, TensorData{0, Box{{12, 0}, {2, 7}}})),
            "x:0: the planned part [12:14, 0:7] lies outside a (master) of shape [13, 7]");
  EXPECT_TRUE(beside().empty());
}

}  // namespace
}  // namespace ebb::libswap
