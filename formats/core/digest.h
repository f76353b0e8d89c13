// Digest: 64 bits that depend on every text and number added, in their order. FNV-1a.
#pragma once

#include <cstdint>
#include <string_view>

namespace ebb::formats {

class Digest {
 public:
  void add(std::string_view text) {
    for (const char c : text) mix(static_cast<unsigned char>(c));
    mix(0xff);
  }
  void add(std::uint64_t number) {
    for (int shift = 0; shift < 64; shift += 8) mix((number >> shift) & 0xff);
  }
  std::uint64_t value() const { return state_; }

 private:
  void mix(std::uint64_t byte) { state_ = (state_ ^ byte) * 0x100000001b3ull; }
  std::uint64_t state_ = 0xcbf29ce484222325ull;
};

}  // namespace ebb::formats
