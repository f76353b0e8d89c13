// What a disk gives to whoever reads and writes as a step does: liburing and nothing of Ebb's queue
// or pager between.
#pragma once

#include <liburing.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "ebb/libswap/sys/aligned_buffer.h"
#include "ebb/libswap/sys/unique.h"

namespace ebb::bench {

class PlainDisk {
 public:
  // How the same bytes are mixed.
  struct Mix {
    std::uint32_t block = 4u << 20;
    std::uint32_t depth = 8;  // in flight, each way
    enum class Order : std::uint8_t { together, in_turns } order = Order::together;
  };

  // A file of twice the bytes, written once; it has no name. O_DIRECT where there is that.
  static Result<std::unique_ptr<PlainDisk>> make(const std::filesystem::path& directory,
                                                 std::uint64_t bytes);
  ~PlainDisk();
  PlainDisk(const PlainDisk&) = delete;
  PlainDisk& operator=(const PlainDisk&) = delete;

  // Seconds to read one half of the file and write the other, through 64 MiB of huge pages each
  // way. REQUIRES: a block that divides 64 MiB, a depth that fits into it.
  Result<double> run(const Mix& mix);

 private:
  struct Lane {
    bool writes = false;
    std::uint64_t next = 0, end = 0;  // of the file
    std::uint64_t place = 0;          // in the memory
    std::uint32_t in_flight = 0;
  };
  PlainDisk() = default;
  Result<> open(const std::filesystem::path& directory, std::uint64_t bytes);
  Result<> move(std::vector<Lane> lanes, const Mix& mix);
  void send(Lane& lane, std::uint64_t number, const Mix& mix);

  std::uint64_t bytes_ = 0;
  libswap::Descriptor file_;
  io_uring ring_{};
  bool ring_open_ = false;
  libswap::AlignedBuffer in_, out_;
};

}  // namespace ebb::bench
