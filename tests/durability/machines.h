// Ranks as machines around one disk: each has a queue, a swap directory and faults of its own, and
// the process on it may die alone. And what the tests of durability share: the weights of
// a run that nothing happened to, how much is asked of them, and from which seed.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ebb/libswap/testing/fault_backend.h"
#include "ebb/libswap/testing/memory_backend.h"
#include "tests/durability/draws.h"
#include "tests/libmuon/support/training.h"
#include "tests/libmuon/support/world.h"

namespace ebb::test {

// brief: a sample, in the default run of the tests; full: the figures of `./dev durability`.
enum class Form : std::uint8_t { brief, full };
Form form();                                                      // by EBB_DURABILITY=full
std::uint64_t brief_or(std::uint64_t brief, std::uint64_t full);  // by form()
// By EBB_SEED; a fixed one without. Printed with what it is for.
std::uint64_t seed_for(const std::string& what);

// Runs work(0) .. work(count - 1), several at a time: they wait for retries more than they compute.
void in_parallel(std::uint64_t count, const std::function<void(std::uint64_t)>& work);

class Machines {
 public:
  using Body = std::function<Result<>(libmuon::Communicator& ranks, libswap::IoQueue& io)>;

  using Disk = std::function<std::unique_ptr<libswap::IoBackend>()>;

  explicit Machines(Disk disk, std::uint32_t world = 2);
  explicit Machines(const std::shared_ptr<libswap::MemoryDisk>& disk, std::uint32_t world = 2);

  // Starts a process a rank that runs `body`, as a thread; what each answered. A rank that fails
  // gives up for all. Every file that was opened must be closed behind it.
  std::vector<Result<>> run(const Body& body);

  std::uint32_t world() const { return static_cast<std::uint32_t>(faults_.size()); }
  libswap::FaultPlan& faults(std::uint32_t rank) { return *faults_[rank]; }

 private:
  Disk disk_;
  std::vector<std::shared_ptr<libswap::FaultPlan>> faults_;
};

std::shared_ptr<libswap::MemoryDisk> empty_disk();

// What an engine has for its tiles.
struct Shape {
  std::uint64_t budget_bytes = 7 * 4096;  // some of them are resident
  std::uint32_t slots = 3;
};

// A rank's engine with what it stands on.
struct OpenRank {
  std::unique_ptr<libswap::SwapDirectory> swap;
  RankEngine rank;
};
Result<OpenRank> open_rank(libmuon::Communicator& ranks, libswap::IoQueue& io,
                           const std::filesystem::path& directory = "/swap",
                           const Shape& shape = {});

// Its steps have several chunks.
libmuon::EngineConfig machines_config(std::uint32_t world, const Shape& shape = {});

// By step, on a disk that never fails.
inline constexpr std::uint64_t kMostSteps = 8;
const std::vector<std::vector<float>>& wanted_weights();

}  // namespace ebb::test
