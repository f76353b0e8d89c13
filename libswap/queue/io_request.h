// What an IoQueue is asked for, how much of it goes at a time, and what it counts. Values.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "ebb/libswap/stats.h"
#include "ebb/libswap/sys/io_backend.h"

namespace ebb::libswap {

enum class Priority : std::uint8_t { step, background };

struct IoRequest {
  RawOp::Kind kind = RawOp::Kind::read;
  FileId file{};
  std::uint64_t offset = 0;
  std::span<std::byte> data;  // borrowed until done; written only by reads
  Priority priority = Priority::step;
  std::function<void(Result<>)>
      done;  // runs on the queue's thread: be short, never block, may submit()
};

struct IoStats {
  std::uint64_t read_bytes = 0;  // moved, not asked for
  std::uint64_t written_bytes = 0;
  std::uint64_t syncs = 0;
  std::uint64_t operations = 0;  // given to the backend, with resumed and repeated ones
  std::uint64_t short_transfers = 0;
  std::uint64_t retries = 0;  // after EINTR or EAGAIN
};
std::vector<Stat> stats_of(const IoStats& stats);

struct IoOptions {
  std::uint32_t chunk_bytes = 4u << 20;            // one operation: 4 KiB to 16 MiB, by 4 KiB
  std::uint64_t read_bytes_in_flight = 32u << 20;  // of a device, as the next
  std::uint64_t write_bytes_in_flight = 32u << 20;
  // Background bytes allowed per step byte while step requests are queued, as 1/n.
  std::uint32_t background_share = 4;
};

}  // namespace ebb::libswap
