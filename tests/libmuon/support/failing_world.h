// Two ranks on a disk in memory that can fail, and what tests of failing disks ask for.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "ebb/libswap/testing/fault_backend.h"
#include "ebb/libswap/testing/memory_backend.h"
#include "tests/libmuon/support/training.h"
#include "tests/libmuon/support/world.h"

namespace ebb::test {

inline constexpr std::uint64_t kMuch = 1u << 28;
inline constexpr std::uint64_t kLittle = 4 * 4096;
inline constexpr std::uint64_t kHalf = 7 * 4096;  // some of the tiles are resident

// Steps of several chunks.
libmuon::EngineConfig config_with(std::uint64_t budget, std::uint32_t slots = 3,
                                  const libmuon::StateDTypes& dtypes = {},
                                  libmuon::Placement placement = libmuon::Placement::owner);

struct FailingWorld {
  FailingWorld() : FailingWorld(nullptr, "/swap") {}
  // On the disk that this machine has: files that are described have to lie there.
  explicit FailingWorld(const TempDir& folder) : FailingWorld(disk(), folder.path() / "swap") {}

  std::shared_ptr<libswap::FaultPlan> faults = std::make_shared<libswap::FaultPlan>();
  World world;

  // One of the ranks does it while all are waiting.
  Result<> meanwhile(libmuon::Communicator& ranks, const std::function<void()>& action);
  // Rank 1's reads fail from now on, from the at-th.
  Result<> fail_reads(libmuon::Communicator& ranks, std::uint64_t at);
  // The disk is well again, and a step that it cut goes on: true where it did.
  Result<bool> mend(libmuon::Communicator& ranks, RankEngine& rank,
                    const Result<libmuon::StepResult>& cut);

 private:
  FailingWorld(std::unique_ptr<libswap::IoBackend> backend, const std::filesystem::path& folder);
};

void expect_well(const std::vector<Result<>>& answers);

template <typename T>
void expect_error(const Result<T>& answer, Code code, const std::string& what) {
  ASSERT_FALSE(answer) << what;
  EXPECT_EQ(answer.error().code, code) << what << ": " << answer.error().message;
}

Result<> step_to(RankEngine& rank, std::uint64_t last);
// Of rank 1, on a disk that never fails.
std::vector<float> weights_after(std::uint64_t steps, const libmuon::StateDTypes& dtypes = {});

}  // namespace ebb::test
