// PagerFailures: the reads and writes of a TileCache that failed: which are tried again, and when,
// which were given up, and which client-managed tiles cannot be read. For whoever has the lock of
// that cache.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "ebb/formats/core/result.h"

namespace ebb::libswap {

class PagerFailures {
 public:
  using Clock = std::chrono::steady_clock;

  // What failed for so many times after the first. False: that is too often.
  bool again_later(std::uint64_t tile, std::uint8_t attempts);
  // Nobody tries that again before go_on(), and the cache stops.
  void give_up(std::uint64_t tile, const Error& error);
  // What was given up is due.
  void go_on();

  bool stopped() const { return why_.has_value(); }
  Result<> why() const { return why_ ? *why_ : Result<>(); }
  bool none_to_try() const { return again_.empty(); }
  // Takes one that is to be tried again now.
  std::optional<std::uint64_t> take_due(Clock::time_point now);

  void unreadable(std::uint64_t tile, const Error& error);
  void readable(std::uint64_t tile) { unreadable_.erase(tile); }
  // The first of them.
  std::optional<Error> why_unreadable(std::uint64_t first, std::uint64_t count) const;

  // Tiles, for who looks at all.
  std::vector<std::uint64_t> to_try() const;
  const std::vector<std::uint64_t>& given_up() const { return given_up_; }

 private:
  struct Again {
    std::uint64_t tile = 0;
    Clock::time_point due;
  };
  std::vector<Again> again_;
  std::vector<std::uint64_t> given_up_;
  std::optional<Error> why_;  // the first
  std::map<std::uint64_t, Error> unreadable_;
};

}  // namespace ebb::libswap
