#include "ebb/libswap/write/plain_segments.h"

#include <algorithm>

#include "ebb/formats/core/check.h"
#include "ebb/formats/core/crc32c.h"
#include "ebb/formats/core/units.h"
#include "ebb/libswap/write/output_files.h"

namespace ebb::libswap {

using formats::Sealed;

namespace {

std::uint64_t end_of(const FileRange& range) { return range.offset + range.size; }

}  // namespace

SharedRangeCrcs::SharedRangeCrcs(const OutputFile& file, std::uint64_t segment_bytes)
    : segment_bytes_(segment_bytes) {
  for (const Fragment& fragment : file.fragments)
    if (const auto* sealed = std::get_if<Sealed>(&fragment.data))
      ranges_.insert(ranges_.end(), sealed->over.begin(), sealed->over.end());
  std::ranges::sort(ranges_);
  const auto repeated = std::ranges::unique(ranges_);
  ranges_.erase(repeated.begin(), repeated.end());
  if (ranges_.empty()) return;
  parts_.resize(formats::div_ceil(file.size, segment_bytes));
  known_.resize(parts_.size(), false);
}

bool SharedRangeCrcs::touches(FileRange bytes) const {
  const auto first = std::ranges::partition_point(
      ranges_, [&](const FileRange& range) { return end_of(range) <= bytes.offset; });
  return first != ranges_.end() && first->offset < end_of(bytes);
}

std::vector<RangeCrc> SharedRangeCrcs::parts_of(std::uint64_t offset, ByteView bytes) const {
  std::vector<RangeCrc> out;
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

void SharedRangeCrcs::publish(std::uint64_t segment, std::vector<RangeCrc> parts) {
  if (ranges_.empty()) return;
  const MutexLock lock(mutex_);
  EBB_CHECK(segment < known_.size() && !known_[segment]);
  parts_[segment] = std::move(parts);
  known_[segment] = true;
  while (complete_ < known_.size() && known_[complete_]) ++complete_;
  grown_.notify_all();
}

bool SharedRangeCrcs::wait_before(std::uint64_t segment) {
  const MutexLock lock(mutex_);
  while (!stopped_ && !ranges_.empty() && complete_ < segment) grown_.wait(mutex_);
  return !stopped_;
}

void SharedRangeCrcs::stop() {
  const MutexLock lock(mutex_);
  stopped_ = true;
  grown_.notify_all();
}

std::uint32_t SharedRangeCrcs::crc_of(std::size_t range, std::uint64_t segment,
                                      ByteView bytes) const {
  const std::uint64_t first = ranges_[range].offset;
  const std::uint64_t end = end_of(ranges_[range]);
  std::uint32_t crc = 0;
  for (std::uint64_t s = first / segment_bytes_; s < segment && s * segment_bytes_ < end; ++s) {
    const auto part = std::ranges::lower_bound(parts_[s], range, {}, &RangeCrc::range);
    if (part == parts_[s].end() || part->range != range) continue;  // an empty range at a border
    crc = formats::crc32_zip_of_both(crc, part->crc, part->bytes);
  }
  const std::uint64_t here = segment * segment_bytes_;
  if (end <= here) return crc;
  const std::uint64_t from = std::max(first, here);
  const ByteView held = bytes.subspan(from - here, end - from);
  return formats::crc32_zip_of_both(crc, formats::crc32_zip(0, held), held.size());
}

std::vector<std::uint32_t> SharedRangeCrcs::crcs_of(const std::vector<FileRange>& ranges,
                                                    std::uint64_t segment, ByteView bytes) const {
  std::vector<std::uint32_t> out;
  const MutexLock lock(mutex_);
  for (const FileRange& range : ranges) {
    const auto found = std::ranges::lower_bound(ranges_, range);
    EBB_CHECK(found != ranges_.end() && *found == range);
    out.push_back(crc_of(static_cast<std::size_t>(found - ranges_.begin()), segment, bytes));
  }
  return out;
}

PlainSegments::PlainSegments(const FragmentReader& reader, std::span<const OutputFile> files,
                             std::uint64_t segment_bytes, const formats::BlockCrcs& block_crcs)
    : reader_(reader),
      files_(files),
      segment_bytes_(segment_bytes),
      block_crcs_(block_crcs),
      segments_(files, segment_bytes, Cut::ranges) {
  for (const OutputFile& file : files) {
    ranges_.push_back(std::make_unique<SharedRangeCrcs>(file, segment_bytes));
    sealed_.push_back(std::ranges::any_of(file.fragments, [](const Fragment& fragment) {
      return std::holds_alternative<Sealed>(fragment.data);
    }));
  }
}

std::uint64_t PlainSegments::buffer_bytes() const {
  std::uint64_t largest = 0;
  for (const OutputFile& file : files_) largest = std::max(largest, file.size);
  return std::clamp<std::uint64_t>(largest, 1, segment_bytes_);
}

Result<std::uint64_t> PlainSegments::worker_bytes() const {
  return buffers() * formats::align_up(segment_bytes_, OutputFiles::kBlock);
}

Result<MadeSegment> PlainSegments::make(const Segment& segment, std::span<std::byte> buffer,
                                        std::uint64_t /*alignment*/) {
  const OutputFile& file = files_[segment.file];
  MadeSegment made{segment.offset, buffer.first(segment.size), {segment.index}};
  EBB_TRY_ASSIGN(made.written.shares, reader_.read(file, segment.offset, made.bytes));
  if (sealed_[segment.file]) {
    EBB_TRY_ASSIGN(made.written.range_crcs, seal(segment, made.bytes));
  }
  made.written.block_crcs = block_crcs_.shares(file, segment.offset, made.bytes);
  return made;
}

// The CRCs of the segment, and its Sealed bytes out of those of others.
Result<std::vector<RangeCrc>> PlainSegments::seal(const Segment& segment,
                                                  std::span<std::byte> bytes) {
  SharedRangeCrcs& ranges = *ranges_[segment.file];
  std::vector<const Fragment*> seals;
  bool sealed_twice = false;  // some range covers what is only put in here
  for (const Fragment& fragment :
       fragments_in(files_[segment.file], segment.offset, segment.size)) {
    const auto* sealed = std::get_if<Sealed>(&fragment.data);
    if (sealed == nullptr || fragment.offset + sealed->size <= segment.offset) continue;
    seals.push_back(&fragment);
    sealed_twice = sealed_twice || ranges.touches({fragment.offset, sealed->size});
  }
  std::vector<RangeCrc> parts;
  const auto publish = [&] {
    parts = ranges.parts_of(segment.offset, bytes);
    ranges.publish(segment.number, parts);
  };
  if (!sealed_twice) publish();
  if (!seals.empty() && !ranges.wait_before(segment.number)) return another_failed();
  for (const Fragment* fragment : seals) {
    const auto& sealed = std::get<Sealed>(fragment->data);
    const ByteVector seal = sealed.blocks_of
                                ? sealed.bytes(block_crcs_.of(*sealed.blocks_of))
                                : sealed.bytes(ranges.crcs_of(sealed.over, segment.number, bytes));
    EBB_CHECK(seal.size() == sealed.size);
    copy_overlap(seal, fragment->offset, bytes, segment.offset);
  }
  if (sealed_twice) publish();
  return parts;
}

void PlainSegments::stop() {
  for (const auto& ranges : ranges_) ranges->stop();
}

}  // namespace ebb::libswap
