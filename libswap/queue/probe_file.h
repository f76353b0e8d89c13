// ProbeFile: a file on the disk that is to be measured, and timed traffic on it through an IoQueue.
// The file has no name, so that nothing is left behind however the process ends.
//
// One half of it is read and the other written, in operations of one size, a number of them in
// flight each way. One thread; not the queue's.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "ebb/libswap/queue/io_queue.h"
#include "ebb/libswap/sys/aligned_buffer.h"

namespace ebb::libswap {

class ProbeFile {
 public:
  struct Options {
    std::uint64_t half_bytes = std::uint64_t{1} << 30;  // the disk needs twice that
    // Of each direction: operations go round in it, so that no processor's cache is measured. No
    // setting may have more in flight.
    std::uint64_t memory_bytes = std::uint64_t{64} << 20;
    double most_seconds = 0;  // for the first writing: shorter halves then; 0: no limit
    const std::atomic<bool>* cancel = nullptr;
  };
  enum class Caching : std::uint8_t { direct, page_cache };  // direct: where the file system can
  enum class Traffic : std::uint8_t { read, write, mixed };  // mixed: both at the same time
  struct Setting {
    std::uint32_t operation_bytes = 4u << 20;  // a multiple of 4096
    std::uint32_t depth = 8;                   // operations in flight, each way
    Caching caching = Caching::direct;
    Pages pages = Pages::huge;
  };

  // Reserves the file and writes all of it once, so that no figure holds the first write of a fresh
  // extent. Code::no_space where it does not fit.
  static Result<std::unique_ptr<ProbeFile>> make(IoQueue& queue, const fs::path& directory,
                                                 const Options& options);
  ~ProbeFile();
  ProbeFile(const ProbeFile&) = delete;
  ProbeFile& operator=(const ProbeFile&) = delete;

  std::uint64_t half_bytes() const;
  const FileInfo& info() const;  // whether Caching::direct is that
  // Bytes per second. Goes over its half once, and with a limit in seconds over and over or over a
  // part of it. What the page cache holds counts as moved only when it is on the disk (a write) and
  // is not there before (a read). REQUIRES: operations that fit half_bytes and memory_bytes.
  Result<double> measure(Traffic traffic, const Setting& setting, double most_seconds = 0);

 private:
  struct Impl;
  explicit ProbeFile(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ebb::libswap
