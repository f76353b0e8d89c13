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

struct SweepOptions {
  std::filesystem::path directory;
  std::uint64_t file_bytes = std::uint64_t{1} << 30;  // at most
  double seconds = 10;                                // of measuring; making the file comes on top
};

// Bytes per second; of several measurements that took turns with the other settings', the median.
struct Rates {
  double read = 0;
  double write = 0;
  double mixed = 0;  // read and written at the same time, equal bytes, together
};
struct Row {
  libswap::ProbeFile::Setting setting;
  Rates rates;

  std::uint64_t window() const { return std::uint64_t{setting.operation_bytes} * setting.depth; }
};

struct Sweep {
  std::string backend;     // "io_uring" or "threads"
  std::string note;        // why not io_uring
  libswap::FileInfo info;  // of the test file
  std::uint64_t file_bytes = 0;
  std::uint64_t free_bytes = 0;  // before
  std::vector<Row> rows;         // blocks and depths, as the engine uses the disk
  Row usual;                     // the engine's own setting
  Row page_cache;                // the same without O_DIRECT; as `usual` where there is none
  Row small_pages;               // the same from memory in pages of 4 KiB
};

// Blocks. Code::no_space where the file does not fit.
Result<Sweep> run_sweep(const SweepOptions& options, StatusLine& status);

}  // namespace ebb::tools::swap_bench
