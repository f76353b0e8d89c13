#include "libswap/sys/seen_parts.h"

#include <algorithm>

#include "formats/core/crc32c.h"

namespace libswap {

using formats::SeenPart;

namespace {

std::uint64_t end_of(const SeenPart& part) { return part.first + part.size; }

// Joins the part at `at` to the one before it where they touch.
void join(std::vector<SeenPart>& parts, std::size_t at) {
  if (at == 0 || at >= parts.size() || end_of(parts[at - 1]) != parts[at].first) return;
  SeenPart& before = parts[at - 1];
  before.crc = formats::crc32_zip_of_both(before.crc, parts[at].crc, parts[at].size);
  before.size += parts[at].size;
  parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at));
}

}  // namespace

std::vector<SeenPart> SeenParts::add(const std::string& key, const SeenPart& part) {
  const std::lock_guard lock(mutex_);
  if (things_.size() >= kMostThings && !things_.contains(key)) things_.clear();
  std::vector<SeenPart>& parts = things_[key];
  if (part.size == 0) return parts;
  auto after = std::ranges::upper_bound(parts, part.first, {}, &SeenPart::first);
  const bool overlaps = (after != parts.begin() && end_of(*(after - 1)) > part.first) ||
                        (after != parts.end() && end_of(part) > after->first);
  if (overlaps) return parts;
  if (parts.size() >= kMostParts) {
    parts.clear();
    after = parts.end();
  }
  const auto put = parts.insert(after, part);
  const auto number = static_cast<std::size_t>(put - parts.begin());
  join(parts, number + 1);
  join(parts, number);
  return parts;
}

}  // namespace libswap
