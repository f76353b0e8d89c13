// What a directory's disk gives, setting by setting.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "ebb/formats/core/units.h"
#include "ebb/libswap/queue/probe_file.h"
#include "tools/cli/status_line.h"

namespace ebb::tools::swap_bench {

constexpr std::uint64_t kLeastFile = 32 * formats::MiB;  // its halves hold a block of each size
// As libswap::IoQueue::Options has them: 32 MiB in flight.
constexpr std::uint32_t kUsualBlock = 4u << 20;
constexpr std::uint32_t kUsualDepth = 8;

struct SweepOptions {
  std::filesystem::path directory;
  std::uint64_t file_bytes = std::uint64_t{1} << 30;  // at most
  double seconds = 20;  // in all: a quarter at most for making the file
};

// Bytes per second, of measurements that took turns with those of other settings.
struct Rate {
  double least = 0, median = 0, most = 0;
};
Rate rate_of(std::vector<double> measured);  // REQUIRES: at least one

struct Rates {
  Rate read, write;
  Rate mixed;  // read and written at the same time, equal bytes, together
};
struct Row {
  libswap::ProbeFile::Setting setting;
  Rates rates;

  std::uint64_t window() const { return std::uint64_t{setting.operation_bytes} * setting.depth; }
  bool usual() const {
    return setting.operation_bytes == kUsualBlock && setting.depth == kUsualDepth;
  }
};

struct Sweep {
  std::string backend;     // "io_uring" or "threads"
  std::string note;        // why not io_uring
  libswap::FileInfo info;  // of the test file
  std::uint64_t file_bytes = 0;
  std::uint64_t free_bytes = 0;  // before
  std::uint32_t rounds = 0;      // in which each setting had its turn
  double seconds = 0;            // that all of it took
  std::vector<Row> rows;         // blocks and depths, the usual ones among them
  Row page_cache;                // the usual ones without O_DIRECT, in the first round
  Row small_pages;               // the usual ones from memory in pages of 4 KiB

  const Row& usual() const;
};

// Blocks. Code::no_space where the file does not fit.
Result<Sweep> run_sweep(const SweepOptions& options, StatusLine& status);

}  // namespace ebb::tools::swap_bench
