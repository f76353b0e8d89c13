// What readers have seen of things that have one checksum and are read in parts.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "formats/core/byte_source.h"

namespace libswap {

// Neighbouring parts are joined, so that what is read from front to back is one part. Thread-safe.
// Forgets rather than grow: a thing in more than kMostParts pieces, and all where there are more
// than kMostThings.
class SeenParts {
 public:
  static constexpr std::size_t kMostParts = 4096;
  static constexpr std::size_t kMostThings = 65536;

  // All that is known of `key` with `part`, ascending and disjoint. A part that overlaps what was
  // seen adds nothing.
  std::vector<formats::SeenPart> add(const std::string& key, const formats::SeenPart& part);

 private:
  std::mutex mutex_;
  std::map<std::string, std::vector<formats::SeenPart>> things_;  // guarded by mutex_
};

}  // namespace libswap
