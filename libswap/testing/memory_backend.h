// A file system in memory that models durability, for tests of what a crash leaves behind.
//
// What a process wrote is in the disk's cache at once: every backend on the same disk sees it, and
// a killed process loses nothing. A power loss keeps what was synced and any choice of the rest:
//   - bytes: each 4 KiB block of a file is as of its last sync or as after any later write to it,
//   or
//     torn between two such versions at a 512-byte sector; a file's length likewise;
//   - names: of the creations, renames and removals in one directory since its last sync, the first
//     few survive, how many is open for each directory; a rename is never half done.
// Syncing a file does not make its name durable: that is the directory's.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "ebb/libswap/sys/io_backend.h"

namespace ebb::libswap {

// What survives of the unsynced: nothing, everything, a choice drawn from the seed, or the choice
// of that number, without torn blocks.
struct PowerLoss {
  enum class Unsynced : std::uint8_t { lost, kept, drawn, numbered };
  Unsynced unsynced = Unsynced::lost;
  std::uint64_t seed = 0;  // for drawn; for numbered: below MemoryDisk::choices()
};

// The root directory "/" exists; relative paths start there. Thread-safe. Reserved and written
// bytes count against the capacity by file length.
class MemoryDisk {
 public:
  static std::shared_ptr<MemoryDisk> create(std::uint64_t capacity_bytes);
  ~MemoryDisk();
  // The disk as it may be found after power failed now; this one stays as it is.
  std::shared_ptr<MemoryDisk> after(const PowerLoss& loss) const;
  // How many choices there are now; some may leave the same disk.
  std::uint64_t choices() const;

  struct State;
  State& state() { return *state_; }

 private:
  explicit MemoryDisk(std::unique_ptr<State> state);
  std::pair<std::shared_ptr<MemoryDisk>, std::uint64_t> lose_power(const PowerLoss& loss) const;
  std::unique_ptr<State> state_;
};

// Locks taken through a backend end with it. Reports direct I/O when asked for it, and then refuses
// transfers that are not at multiples of `alignment` with EINVAL as a kernel does.
std::unique_ptr<IoBackend> make_memory_backend(std::shared_ptr<MemoryDisk> disk,
                                               std::uint32_t alignment = 4096);

}  // namespace ebb::libswap
