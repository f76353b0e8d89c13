// The calls that make a store durable are really made: everything else about them is tested on a
// disk in memory, which a backend that calls nothing would pass.
#include <gtest/gtest.h>

#include "ebb/libswap/store/store_set.h"
#include "ebb/libswap/sys/posix_backend.h"
#include "tests/libswap/store/store_world.h"
#include "tests/libswap/sys/test_files.h"
#include "tests/support/traced.h"

namespace ebb::libswap {
namespace {

int train(const fs::path& swap, std::uint64_t steps) {
  auto backend = make_threads_backend(2);
  if (!backend) return 2;
  const auto io = start_queue(std::move(*backend));
  const auto directory = SwapDirectory::open(*io, swap);
  if (!directory) return 3;
  Store::Config config = test_config(0, 1);
  Alone alone;
  const auto fresh = (*directory)->fresh(alone);
  config.directory = fresh->path;
  config.uuid = fresh->uuid;
  const auto store = Store::create(*io, config);
  if (!store || !(*store)->recover(alone)) return 4;
  for (std::uint64_t step = 1; step <= steps; ++step) {
    const auto committed = write_and_commit(*io, **store, alone, step);
    if (!committed || !*committed) return 5;
  }
  return 0;
}

TEST(SyncTrace, AStoreSyncsItsFilesItsFoldersAndEachGenerationInThisOrder) {
  const TemporaryDirectory folder;
  const auto seen = test_support::trace([&] { return train(folder / "swap", 2); });
  if (!seen.why_not.empty()) GTEST_SKIP() << seen.why_not;
  ASSERT_EQ(seen.exit, 0);
  std::size_t at = 0;
  const auto expect = [&](std::string_view name, std::string_view path_end) {
    const std::size_t found = seen.find(name, path_end, at);
    ASSERT_LT(found, seen.calls.size()) << name << " " << path_end << " is missing";
    at = found + 1;
  };
  expect("mkdir", "/swap");
  expect("fsync", folder.path().filename().string());  // the new folder's name
  expect("pwrite64", ".data");
  expect("fsync", ".data");
  expect("pwrite64", "meta.ebb");
  expect("fsync", "meta.ebb");
  expect("fsync", "/rank-00000-of-00001");
  expect("fsync", "/swap");
  for (int generation = 1; generation <= 2; ++generation) {
    expect("pwrite64", ".data");
    expect("fdatasync", ".data");
    expect("pwrite64", "meta.ebb");
    expect("fdatasync", "meta.ebb");
  }
  // Nothing of a generation is written to the data file between its sync and its manifest.
  const std::size_t sync = seen.find("fdatasync", ".data");
  EXPECT_GT(seen.find("pwrite64", ".data", sync), seen.find("pwrite64", "meta.ebb", sync));
}

}  // namespace
}  // namespace ebb::libswap
