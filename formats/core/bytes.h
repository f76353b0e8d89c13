// Little-endian numbers over byte spans, with bounds checked by the reader.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "ebb/formats/core/check.h"

namespace ebb::formats {

using ByteView = std::span<const std::byte>;
using ByteVector = std::vector<std::byte>;

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "big-endian hosts are not supported");

// REQUIRES: bytes.size() >= sizeof(T)
template <typename T>
T load_le(ByteView bytes) {
  static_assert(std::is_trivially_copyable_v<T>);
  EBB_CHECK(bytes.size() >= sizeof(T));
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

void append_bytes(ByteVector& out, ByteView bytes);
template <typename T>
void append_le(ByteVector& out, T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  append_bytes(out, {reinterpret_cast<const std::byte*>(&value), sizeof(T)});
}
inline ByteView view_of(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}
inline std::string_view text_of(ByteView bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
inline void append_text(ByteVector& out, std::string_view text) {
  append_bytes(out, view_of(text));
}

// Reads forward through bytes; nullopt, and no movement, when too few are left.
class ByteReader {
 public:
  explicit ByteReader(ByteView bytes) : bytes_(bytes) {}

  std::size_t position() const { return position_; }
  std::size_t left() const { return bytes_.size() - position_; }

  template <typename T>
  std::optional<T> number() {
    if (left() < sizeof(T)) return std::nullopt;
    const T value = load_le<T>(bytes_.subspan(position_));
    position_ += sizeof(T);
    return value;
  }
  std::optional<ByteView> take(std::uint64_t count) {
    if (left() < count) return std::nullopt;
    const ByteView taken = bytes_.subspan(position_, static_cast<std::size_t>(count));
    position_ += static_cast<std::size_t>(count);
    return taken;
  }

 private:
  ByteView bytes_;
  std::size_t position_ = 0;
};

}  // namespace ebb::formats

namespace ebb {
using formats::ByteVector;
using formats::ByteView;
}  // namespace ebb
