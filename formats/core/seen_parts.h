// What readers have seen of things that have one checksum and are read in parts.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ebb/formats/core/bytes.h"

namespace ebb::formats {

// Neighbouring parts are joined, so that what is read from front to back is one part. For one
// thread at a time. Forgets rather than grow: a thing in more than kMostParts pieces, and all where
// there are more than kMostThings that are not whole.
class SeenParts {
 public:
  static constexpr std::size_t kMostParts = 4096;
  static constexpr std::size_t kMostThings = 65536;

  // `bytes` of `key`, from byte `first` of its `size`, and their own CRC32 (to compute that is work
  // that no other reader need wait for). The CRC32 (zip's) of all of it when nothing is missing any
  // more; then it is forgotten. What was seen before counts once.
  std::optional<std::uint32_t> add(const std::string& key, std::uint64_t size, std::uint64_t first,
                                   ByteView bytes, std::uint32_t crc);

 private:
  struct Part {
    std::uint64_t first = 0;
    std::uint64_t size = 0;
    std::uint32_t crc = 0;
    std::uint64_t end() const { return first + size; }
  };
  using Parts = std::vector<Part>;  // ascending, disjoint

  static std::vector<Part> unseen(const Parts& parts, std::uint64_t first, std::uint64_t end);
  static void join(Parts& parts, std::size_t at);

  std::map<std::string, Parts> things_;
};

}  // namespace ebb::formats
