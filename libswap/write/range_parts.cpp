#include "ebb/libswap/write/range_parts.h"

#include <algorithm>

#include "ebb/formats/core/check.h"
#include "ebb/formats/core/crc32c.h"
#include "ebb/formats/core/units.h"
#include "ebb/libswap/sys/mutex.h"

namespace ebb::libswap {

namespace {

std::uint64_t end_of(const FileRange& range) { return range.offset + range.size; }

}  // namespace

RangeParts::RangeParts(const OutputFile& file, std::uint64_t piece_bytes)
    : piece_bytes_(piece_bytes) {
  for (const Fragment& fragment : file.fragments)
    if (const auto* sealed = std::get_if<formats::Sealed>(&fragment.data))
      ranges_.insert(ranges_.end(), sealed->over.begin(), sealed->over.end());
  std::ranges::sort(ranges_);
  const auto repeated = std::ranges::unique(ranges_);
  ranges_.erase(repeated.begin(), repeated.end());
  if (ranges_.empty()) return;
  parts_.resize(formats::div_ceil(file.size, piece_bytes));
  known_.resize(parts_.size(), false);
}

bool RangeParts::touches(FileRange bytes) const {
  const auto first = std::ranges::partition_point(
      ranges_, [&](const FileRange& range) { return end_of(range) <= bytes.offset; });
  return first != ranges_.end() && first->offset < end_of(bytes);
}

std::vector<RangePart> RangeParts::parts_of(std::uint64_t offset, ByteView bytes) const {
  std::vector<RangePart> out;
  const std::uint64_t end = offset + bytes.size();
  auto range = std::ranges::partition_point(
      ranges_, [&](const FileRange& candidate) { return end_of(candidate) <= offset; });
  for (; range != ranges_.end() && range->offset < end; ++range) {
    const std::uint64_t first = std::max(range->offset, offset);
    const ByteView held = bytes.subspan(first - offset, std::min(end_of(*range), end) - first);
    out.push_back({static_cast<std::uint32_t>(range - ranges_.begin()), formats::crc32_zip(0, held),
                   held.size()});
  }
  return out;
}

void RangeParts::publish(std::uint64_t piece, std::vector<RangePart> parts) {
  if (ranges_.empty()) return;
  const MutexLock lock(mutex_);
  EBB_CHECK(piece < known_.size() && !known_[piece]);
  parts_[piece] = std::move(parts);
  known_[piece] = true;
  while (complete_ < known_.size() && known_[complete_]) ++complete_;
  grown_.notify_all();
}

std::vector<RangePart> RangeParts::published(std::uint64_t piece) const {
  if (ranges_.empty()) return {};
  const MutexLock lock(mutex_);
  return parts_[piece];
}

bool RangeParts::wait_before(std::uint64_t piece) {
  const MutexLock lock(mutex_);
  while (!stopped_ && !ranges_.empty() && complete_ < piece) grown_.wait(mutex_);
  return !stopped_;
}

void RangeParts::stop() {
  const MutexLock lock(mutex_);
  stopped_ = true;
  grown_.notify_all();
}

std::uint32_t RangeParts::crc_of(std::size_t range, std::uint64_t piece, ByteView bytes) const {
  const std::uint64_t first = ranges_[range].offset;
  const std::uint64_t end = end_of(ranges_[range]);
  std::uint32_t crc = 0;
  for (std::uint64_t p = first / piece_bytes_; p < piece && p * piece_bytes_ < end; ++p) {
    const auto part = std::ranges::lower_bound(parts_[p], range, {}, &RangePart::range);
    if (part == parts_[p].end() || part->range != range) continue;  // an empty range at a border
    crc = formats::crc32_zip_of_both(crc, part->crc, part->bytes);
  }
  const std::uint64_t here = piece * piece_bytes_;
  if (end <= here) return crc;
  const std::uint64_t from = std::max(first, here);
  const ByteView held = bytes.subspan(from - here, end - from);
  return formats::crc32_zip_of_both(crc, formats::crc32_zip(0, held), held.size());
}

std::vector<std::uint32_t> RangeParts::crcs_of(const std::vector<FileRange>& ranges,
                                               std::uint64_t piece, ByteView bytes) const {
  std::vector<std::uint32_t> out;
  const MutexLock lock(mutex_);
  for (const FileRange& range : ranges) {
    const auto found = std::ranges::lower_bound(ranges_, range);
    EBB_CHECK(found != ranges_.end() && *found == range);
    out.push_back(crc_of(static_cast<std::size_t>(found - ranges_.begin()), piece, bytes));
  }
  return out;
}

}  // namespace ebb::libswap
