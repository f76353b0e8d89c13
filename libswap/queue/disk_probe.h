// What a disk gives through our own queue: the rates that predictions and ratios refer to.
#pragma once

#include "ebb/libswap/queue/io_queue.h"

namespace ebb::libswap {

struct DiskProbe {
  std::uint64_t bytes = std::uint64_t{1} << 30;  // each way and phase; the disk needs twice that
  std::uint32_t operation_bytes = 4u << 20;      // a multiple of 4096
  std::uint32_t depth = 8;                       // operations in flight, each way
};

struct DiskLimit {
  double read = 0;         // bytes per second, alone
  double write = 0;        // alone
  double mixed = 0;        // read plus written, equal bytes each way at the same time
  bool direct = false;     // false: these are the page cache's figures
  bool in_memory = false;  // tmpfs: no disk at all
};

// On a ProbeFile, from huge pages, with O_DIRECT where the file system has it. Moves 6 x
// probe.bytes. Blocks; not on the queue's thread.
Result<DiskLimit> measure_disk(IoQueue& queue, const fs::path& directory, const DiskProbe& probe);

// What of the I/O in a directory, and of memory for it, is not as it is best, and why: one line
// each. Makes a file there for a moment.
Result<std::vector<std::string>> io_notes(IoBackend& backend, const fs::path& directory);

}  // namespace ebb::libswap
