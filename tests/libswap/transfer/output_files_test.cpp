#include "ebb/libswap/write/output_files.h"

#include <gtest/gtest.h>

#include <future>

#include "ebb/libswap/testing/fault_backend.h"
#include "tests/libswap/transfer/toy_format.h"

namespace ebb::libswap {
namespace {

// The first error that a writer hears is what it reports: were it the second one, a full disk would
// be called a cancellation, and what is there be kept for a next attempt.
TEST(OutputFiles, WhoWaitsForAFileThatFailedHearsOfItOnlyWhenStopped) {
  const auto faults = std::make_shared<FaultPlan>();
  const auto disk = MemoryDisk::create(std::uint64_t{1} << 20);
  const auto queue = testing::queue_over(make_fault_backend(make_memory_backend(disk), faults));
  ASSERT_TRUE(queue->backend().make_directory("/out"));
  faults->add({.on = FaultOn::name, .error = ENOSPC, .path_part = "/out/a"});
  std::vector<OutputFile> files(2);
  files[0].name = "a";
  files[1].name = "b";
  OutputFiles outputs(*queue, "/out", files, {.segment_bytes = 4096});
  const Result<> failed = outputs.ensure_open(0);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, Code::no_space);
  EXPECT_TRUE(outputs.ensure_open(1));
  auto waiting = std::async(std::launch::async, [&] { return outputs.ensure_open(0); });
  outputs.stop();
  const Result<> stopped = waiting.get();
  ASSERT_FALSE(stopped);
  EXPECT_EQ(stopped.error().code, Code::cancelled);
}

}  // namespace
}  // namespace ebb::libswap
