// What is under way in a TileCache, as numbers: all of these are for whoever has its lock.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <utility>

#include "ebb/formats/core/result.h"

namespace ebb::libswap {

// Requests and jobs that will call the cache.
class InFlight {
 public:
  void begin() { ++all_; }
  void end() { --all_; }
  // A read ends for the disk before it ends.
  void begin_read() { ++all_, ++reads_; }
  void disk_has_read() { --reads_; }
  // Released, and not yet with the disk.
  void begin_release() { ++all_, ++releases_; }
  void end_release() { --all_, --releases_; }

  std::uint64_t all() const { return all_; }
  std::uint64_t reads() const { return reads_; }  // that the disk has
  std::uint64_t releases() const { return releases_; }

 private:
  std::uint64_t all_ = 0, reads_ = 0, releases_ = 0;
};

// Of the present cut.
class CutUnderWay {
 public:
  // `writes` of it were under way before it.
  void begin(std::uint64_t writes) {
    error_.reset();
    writes_ = writes;
  }
  void wrote() { --writes_; }
  std::uint64_t writes() const { return writes_; }  // not yet written

  void begin_resident() { ++residents_; }
  void end_resident() { --residents_; }
  std::uint64_t residents() const { return residents_; }  // begun and not settled

  // The first counts.
  void fail(const Error& error) {
    if (!error_) error_ = error;
  }
  const std::optional<Error>& error() const { return error_; }

  // Residents are written in the order of these numbers.
  std::uint64_t count_change() { return ++changes_; }

 private:
  std::uint64_t writes_ = 0, residents_ = 0, changes_ = 0;
  std::optional<Error> error_;
};

// What is to be read, for the one client who prefetches.
class ReadAhead {
 public:
  std::uint64_t new_reader() { return ++readers_; }
  // Who was it before?
  std::uint64_t read_for(std::uint64_t reader) { return std::exchange(reader_, reader); }
  void add(std::uint64_t tile) { tiles_.push_back(tile); }
  void begin_next() { tiles_.pop_front(); }
  void clear() { tiles_.clear(); }
  // These, which ascend, are not wanted any more.
  void forget(std::span<const std::uint64_t> tiles) {
    std::erase_if(tiles_,
                  [&](std::uint64_t one) { return std::ranges::binary_search(tiles, one); });
  }
  const std::deque<std::uint64_t>& tiles() const { return tiles_; }

 private:
  std::deque<std::uint64_t> tiles_;
  std::uint64_t reader_ = 0, readers_ = 0;  // who wants them; numbers given away
};

}  // namespace ebb::libswap
