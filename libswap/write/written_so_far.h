// What a checkpoint that is being written has come to: bytes, and sums of what was stored.
// Of one thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "ebb/libswap/publish/written_segment.h"

namespace ebb::libswap {

// Bytes.
class WrittenBytes {
 public:
  explicit WrittenBytes(std::uint64_t total) : total_(total) {}

  // Made by an earlier attempt.
  void found(std::uint64_t bytes) { found_ += bytes, finished_ += bytes; }
  void made(std::uint64_t bytes) { finished_ += bytes; }
  void on_disk(std::uint64_t bytes) { on_disk_ += bytes; }
  // Some files are of other sizes than was planned.
  void replan(std::uint64_t planned, std::uint64_t now) { total_ += now - planned; }

  std::uint64_t total() const { return total_; }
  std::uint64_t finished() const { return finished_; }
  std::uint64_t found() const { return found_; }
  std::uint64_t on_disk() const { return on_disk_; }  // of all files, as they are there

 private:
  std::uint64_t total_, finished_ = 0, found_ = 0, on_disk_ = 0;
};

// Fingerprints, as segments have a share of them.
class ShareSums {
 public:
  ShareSums(std::size_t stored, std::size_t derived) : stored_(stored, 0), derived_(derived, 0) {}

  // Whether these are shares of something.
  bool know(const Shares& shares) const {
    const auto known = [](const std::vector<Share>& some, std::size_t count) {
      return std::ranges::all_of(some, [&](const Share& share) { return share.number < count; });
    };
    return known(shares.stored, stored_.size()) && known(shares.derived, derived_.size());
  }
  void add(const Shares& shares) {
    for (const Share& share : shares.stored) stored_[share.number] += share.fingerprint;
    for (const Share& share : shares.derived) derived_[share.number] += share.fingerprint;
  }

  const std::vector<std::uint64_t>& stored() const { return stored_; }  // by tensor
  const std::vector<std::uint64_t>& derived() const {
    return derived_;
  }  // what readers will derive

 private:
  std::vector<std::uint64_t> stored_, derived_;
};

}  // namespace ebb::libswap
