// What tests of interrupted writing share: a source, a disk with /out, one call that writes and
// resumes, and the ways in which it is interrupted.
#pragma once

#include <gtest/gtest.h>

#include "ebb/libswap/testing/fault_backend.h"
#include "ebb/libswap/write/write_checkpoint.h"
#include "tests/libswap/transfer/toy_format.h"

namespace ebb::libswap::testing {

class Interrupted : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kSegment = 64;

  Interrupted(std::uint32_t workers, std::uint64_t seed, std::uint64_t disk_bytes)
      : random_(seed), disk_(MemoryDisk::create(disk_bytes)), workers_(workers) {
    EXPECT_TRUE(queue_->backend().make_directory("/out"));
    EXPECT_TRUE(queue_->backend().sync_directory("/"));
  }

  // ASSERTs that the report and what is in /out are those of the whole plan.
  virtual void expect_result(IoQueue& io, const Result<WriteReport>& report) = 0;

  WriteOptions options() const {
    return {.workers = workers_,
            .segment_bytes = kSegment,
            .source_identity = "the source as it was",
            .journal_interval = std::chrono::milliseconds(0)};
  }
  Result<WriteReport> write(IoQueue& io, const WriteOptions& options) {
    return write_checkpoint(io, source_, plan_, "/out/ckpt", options);
  }
  Result<WriteReport> write(const WriteOptions& options) { return write(*queue_, options); }

  // Of all files, before compression.
  std::uint64_t bytes_of_all() const {
    std::uint64_t bytes = 0;
    for (const auto* files : {&plan_.files, &plan_.commit_files})
      for (const OutputFile& file : *files) bytes += file.size;
    return bytes;
  }

  // Stops when so many bytes are written.
  void interrupt(std::uint64_t at) {
    std::atomic<bool> cancel = false;
    WriteOptions stopped = options();
    stopped.cancel = &cancel;
    stopped.progress = [&](const WriteProgress& now) {
      if (now.bytes_done >= at) cancel.store(true);
    };
    const auto report = write(stopped);
    ASSERT_FALSE(report);
    EXPECT_EQ(report.error().code, Code::cancelled);
    const std::string_view hint = report.error().hint;
    constexpr std::string_view kSaid = "the same command goes on from here; to give up, remove ";
    ASSERT_TRUE(hint.starts_with(kSaid)) << hint;
    const auto kept = queue_->backend().exists(hint.substr(kSaid.size()));
    EXPECT_TRUE(kept && *kept) << hint;
  }

  // A crash before each operation that makes something durable; whatever the disk kept, in so many
  // ways, the same call must then succeed. `gone_on`: how often it found something to go on from.
  void crash_everywhere(std::uint64_t losses, std::uint64_t& gone_on) {
    for (std::uint64_t at = 0;; ++at) {
      const auto disk = disk_->after({.unsynced = PowerLoss::Unsynced::kept});
      const auto faults = std::make_shared<FaultPlan>();
      faults->add({.on = FaultOn::durable, .at = at, .kind = FaultKind::die});
      {
        const auto queue = queue_over(make_fault_backend(make_memory_backend(disk), faults));
        static_cast<void>(write(*queue, options()));
      }
      for (std::uint64_t seed = 0; seed < losses; ++seed) {
        PowerLoss loss{.unsynced = PowerLoss::Unsynced::drawn, .seed = seed};
        if (seed == 0) loss.unsynced = PowerLoss::Unsynced::lost;
        if (seed == 1) loss.unsynced = PowerLoss::Unsynced::kept;
        const auto queue = queue_on(disk->after(loss));
        WriteOptions again = options();
        again.overwrite = Overwrite::replace;
        const auto report = write(*queue, again);
        expect_result(*queue, report);
        ASSERT_FALSE(HasFatalFailure()) << "crash before operation " << at << ", loss " << seed;
        gone_on += report->bytes_found > 0 ? 1 : 0;
      }
      if (!faults->died()) break;
    }
  }

  Random random_;
  MemoryCheckpoint source_;
  EmitPlan plan_;
  std::shared_ptr<MemoryDisk> disk_;
  std::unique_ptr<IoQueue> queue_ = queue_on(disk_);

 private:
  std::uint32_t workers_;
};

}  // namespace ebb::libswap::testing
