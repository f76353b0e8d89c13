// What a disk gives to whoever reads and writes where a step does: liburing and nothing of Ebb's
// queue or pager between. Of a disk that is shared one file may be a sixth faster than the next, so
// the step's own file is measured.
#pragma once

#include <liburing.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "ebb/libswap/sys/aligned_buffer.h"
#include "ebb/libswap/sys/unique.h"
#include "tests/bench/swap_step.h"

namespace ebb::bench {

class PlainDisk {
 public:
  // How the same bytes are mixed.
  struct Mix {
    std::uint32_t block = 4u << 20;
    std::uint32_t depth = 8;  // in flight, each way
    enum class Order : std::uint8_t { together, in_turns } order = Order::together;
  };

  static Result<std::unique_ptr<PlainDisk>> make();
  ~PlainDisk();
  PlainDisk(const PlainDisk&) = delete;
  PlainDisk& operator=(const PlainDisk&) = delete;

  // Seconds to read and write all places, in their order, through 64 MiB of huge pages each way;
  // O_DIRECT where there is that. What is written is the content: nothing changes. REQUIRES: the
  // content divides 64 MiB, and a block divides it or is longer; a depth that fits into 64 MiB.
  Result<double> run(const Places& places, const Mix& mix);

 private:
  struct Lane {
    bool writes = false;
    std::uint64_t next = 0, end = 0;  // bytes of all places, one after another
    std::uint32_t in_flight = 0;
  };
  PlainDisk() = default;
  Result<> move(const Places& places, std::vector<Lane> lanes, const Mix& mix);
  void send(const Places& places, Lane& lane, std::uint64_t number, std::uint32_t block);

  libswap::Descriptor file_;
  io_uring ring_{};
  bool ring_open_ = false;
  libswap::AlignedBuffer in_, out_;
};

}  // namespace ebb::bench
