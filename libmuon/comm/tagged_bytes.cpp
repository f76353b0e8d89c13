#include "ebb/libmuon/comm/tagged_bytes.h"

#include <algorithm>

#include "ebb/formats/core/units.h"

namespace ebb::libmuon {
namespace {

constexpr std::size_t kMostFrame = 4 * formats::MiB;
constexpr std::size_t kMostAtOnce = 4 * formats::MiB;  // then others are looked at

}  // namespace

Result<bool> TaggedBytes::write(std::uint32_t tag, ByteLane& from) {
  const libswap::MutexLock lock(write_mutex_);
  std::size_t moved = 0;
  while (from.left() > 0 && moved < kMostAtOnce) {
    if (!written_.under_way()) {
      const std::size_t bytes = std::min(from.left(), kMostFrame);
      written_ = {{tag, static_cast<std::uint32_t>(bytes)}, sizeof(Header), bytes};
    }
    if (written_.header.tag != tag) break;
    if (written_.header_left > 0) {
      EBB_TRY_ASSIGN(const std::size_t count, pipe_.write(written_.rest_of_header()));
      written_.header_left -= count;
      if (written_.header_left > 0) break;
    }
    EBB_TRY_ASSIGN(const std::size_t count, pipe_.write(from.next(written_.left)));
    if (count == 0) break;
    from.used(count);
    written_.left -= count;
    moved += count;
  }
  return moved > 0;
}

Result<bool> TaggedBytes::read(std::uint32_t tag, ByteLane& into) {
  const libswap::MutexLock lock(read_mutex_);
  std::size_t moved = 0;
  while (into.left() > 0 && moved < kMostAtOnce) {
    if (!read_.under_way()) read_.header_left = sizeof(Header);
    if (read_.header_left > 0) {
      EBB_TRY_ASSIGN(const std::size_t count, pipe_.read(read_.rest_of_header()));
      read_.header_left -= count;
      if (read_.header_left > 0) break;
      read_.left = read_.header.bytes;
    }
    if (read_.header.tag != tag) break;
    if (read_.left > into.left())
      return Error{Code::corrupt, compose("{} bytes of a round come from another rank, where {} "
                                          "are expected",
                                          read_.left, into.left())};
    EBB_TRY_ASSIGN(const std::size_t count, pipe_.read(into.next(read_.left)));
    if (count == 0) break;
    into.used(count);
    read_.left -= count;
    moved += count;
  }
  return moved > 0;
}

}  // namespace ebb::libmuon
