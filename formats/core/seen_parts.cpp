#include "ebb/formats/core/seen_parts.h"

#include <algorithm>

#include "ebb/formats/core/crc32c.h"

namespace ebb::formats {

// Of [first, end), what no part holds.
std::vector<SeenParts::Part> SeenParts::unseen(const Parts& parts, std::uint64_t first,
                                               std::uint64_t end) {
  std::vector<Part> missing;
  auto part = std::ranges::upper_bound(parts, first, {}, &Part::end);
  for (; part != parts.end() && part->first < end; ++part) {
    if (first < part->first) missing.push_back({first, part->first - first, 0});
    first = part->end();
  }
  if (first < end) missing.push_back({first, end - first, 0});
  return missing;
}

// Joins the part at `at` to the one before it where they touch.
void SeenParts::join(Parts& parts, std::size_t at) {
  if (at == 0 || at >= parts.size() || parts[at - 1].end() != parts[at].first) return;
  Part& before = parts[at - 1];
  before.crc = crc32_zip_of_both(before.crc, parts[at].crc, parts[at].size);
  before.size += parts[at].size;
  parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at));
}

std::optional<std::uint32_t> SeenParts::add(const std::string& key, std::uint64_t size,
                                            std::uint64_t first, ByteView bytes,
                                            std::uint32_t crc) {
  if (things_.size() >= kMostThings && !things_.contains(key)) things_.clear();
  Parts& parts = things_[key];
  if (parts.size() >= kMostParts) parts.clear();
  for (Part fresh : unseen(parts, first, first + bytes.size())) {
    fresh.crc = fresh.size == bytes.size()
                    ? crc
                    : crc32_zip(0, bytes.subspan(fresh.first - first, fresh.size));
    const auto put =
        parts.insert(std::ranges::upper_bound(parts, fresh.first, {}, &Part::first), fresh);
    const auto number = static_cast<std::size_t>(put - parts.begin());
    join(parts, number + 1);
    join(parts, number);
  }
  if (parts.size() != 1 || parts.front().size != size) return std::nullopt;
  const std::uint32_t all = parts.front().crc;
  things_.erase(key);
  return all;
}

}  // namespace ebb::formats
