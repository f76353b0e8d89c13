#include "ebb/formats/zip/zip_layout.h"

#include <algorithm>

#include "ebb/formats/core/check.h"
#include "ebb/formats/core/compose.h"
#include "ebb/formats/core/crc32c.h"
#include "ebb/formats/core/units.h"

namespace ebb::formats {
namespace {

constexpr std::uint64_t kAlign = 64;
constexpr std::uint64_t kMost32 = 0xffffffffu;
constexpr std::uint16_t kUtf8Flag = 0x0800;
constexpr std::uint16_t kDescriptorFlag = 0x0008;
constexpr std::uint16_t kNeedsZip64 = 45;
constexpr std::uint16_t kNeedsPlain = 20;

std::uint32_t capped(std::uint64_t value) {
  return static_cast<std::uint32_t>(std::min(value, kMost32));
}

// `sizes` copies of size and `offsets` of the header's offset, in that order.
void append_zip64(ByteVector& out, std::uint64_t size, int sizes, std::uint64_t header_at,
                  int offsets) {
  append_le(out, std::uint16_t{1});
  append_le(out, static_cast<std::uint16_t>(8 * (sizes + offsets)));
  for (int i = 0; i < sizes; ++i) append_le(out, size);
  for (int i = 0; i < offsets; ++i) append_le(out, header_at);
}

}  // namespace

std::uint16_t ZipLayout::flags(const Entry& entry) {
  return static_cast<std::uint16_t>(kUtf8Flag | (entry.size > 0 ? kDescriptorFlag : 0));
}

ByteVector ZipLayout::begin(std::string_view name, std::uint64_t size) {
  Entry entry{compose("{}/{}", folder_, name), size, cursor_};
  const bool wide = size >= kMost32;
  const std::uint64_t fixed = 30 + entry.name.size() + (wide ? 20 : 0) + 4;
  const std::uint64_t padding = align_up(cursor_ + fixed, kAlign) - cursor_ - fixed;
  ByteVector out;
  append_le(out, std::uint32_t{0x04034b50});
  append_le(out, wide ? kNeedsZip64 : kNeedsPlain);
  append_le(out, flags(entry));
  for (int i = 0; i < 3; ++i) append_le(out, std::uint16_t{0});  // stored; no time, no date
  append_le(out, std::uint32_t{0});  // the CRC stands in the descriptor and the directory
  append_le(out, wide ? capped(kMost32) : std::uint32_t{0});
  append_le(out, wide ? capped(kMost32) : std::uint32_t{0});
  append_le(out, static_cast<std::uint16_t>(entry.name.size()));
  append_le(out, static_cast<std::uint16_t>((wide ? 20 : 0) + 4 + padding));
  append_text(out, entry.name);
  if (wide) append_zip64(out, size, 2, 0, 0);
  append_text(out, "FB");
  append_le(out, static_cast<std::uint16_t>(padding));
  out.insert(out.end(), padding, std::byte{'Z'});
  entries_.push_back(std::move(entry));
  cursor_ += out.size() + size;
  return out;
}

ByteVector ZipLayout::end(std::uint32_t crc) {
  const Entry& entry = entries_.back();
  ByteVector out;
  if (entry.size == 0) return out;
  append_le(out, std::uint32_t{0x08074b50});
  append_le(out, crc);
  for (int i = 0; i < 2; ++i) {
    if (entry.size >= kMost32)
      append_le(out, entry.size);
    else
      append_le(out, static_cast<std::uint32_t>(entry.size));
  }
  cursor_ += out.size();
  return out;
}

ByteVector ZipLayout::record(std::string_view name, ByteView bytes) {
  ByteVector out = begin(name, bytes.size());
  append_bytes(out, bytes);
  append_bytes(out, end(crc32_zip(0, bytes)));
  return out;
}

ByteVector ZipLayout::directory(std::span<const std::uint32_t> crcs) const {
  EBB_CHECK(crcs.size() == entries_.size());
  ByteVector out;
  for (std::size_t i = 0; i < entries_.size(); ++i) append_central(out, entries_[i], crcs[i]);
  const std::uint64_t size = out.size();
  const std::uint64_t count = entries_.size();
  append_le(out, std::uint32_t{0x06064b50});
  append_le(out, std::uint64_t{44});
  append_le(out, kNeedsZip64);
  append_le(out, kNeedsZip64);
  append_le(out, std::uint64_t{0});  // this volume, and the one with the directory
  append_le(out, count);
  append_le(out, count);
  append_le(out, size);
  append_le(out, cursor_);
  append_le(out, std::uint32_t{0x07064b50});
  append_le(out, std::uint32_t{0});
  append_le(out, cursor_ + size);
  append_le(out, std::uint32_t{1});
  append_le(out, std::uint32_t{0x06054b50});
  append_le(out, std::uint32_t{0});
  const auto count16 = static_cast<std::uint16_t>(std::min<std::uint64_t>(count, 0xffff));
  append_le(out, count16);
  append_le(out, count16);
  append_le(out, capped(size));
  append_le(out, capped(cursor_));
  append_le(out, std::uint16_t{0});
  return out;
}

void ZipLayout::append_central(ByteVector& out, const Entry& entry, std::uint32_t crc) {
  const int sizes = entry.size >= kMost32 ? 2 : 0;
  const int offsets = entry.header_at >= kMost32 ? 1 : 0;
  const int extra = sizes + offsets > 0 ? 4 + 8 * (sizes + offsets) : 0;
  append_le(out, std::uint32_t{0x02014b50});
  append_le(out, std::uint16_t{0});
  append_le(out, extra > 0 ? kNeedsZip64 : kNeedsPlain);
  append_le(out, flags(entry));
  for (int i = 0; i < 3; ++i) append_le(out, std::uint16_t{0});
  append_le(out, crc);
  append_le(out, capped(entry.size));
  append_le(out, capped(entry.size));
  append_le(out, static_cast<std::uint16_t>(entry.name.size()));
  append_le(out, static_cast<std::uint16_t>(extra));
  append_le(out, std::uint16_t{0});  // comment
  append_le(out, std::uint16_t{0});  // volume
  append_le(out, std::uint16_t{0});  // attributes
  append_le(out, std::uint32_t{0});
  append_le(out, capped(entry.header_at));
  append_text(out, entry.name);
  if (extra > 0) append_zip64(out, entry.size, sizes, entry.header_at, offsets);
}

}  // namespace ebb::formats
