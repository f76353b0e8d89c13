// PlainSegments: segments that are parts of their files as the plan has them.
//
// A segment with Sealed bytes fills everything else first, publishes its part of the CRCs and then
// waits for those of the segments before it; they were all taken earlier, so somebody is at them.
#pragma once

#include <vector>

#include "ebb/formats/catalog/range_crcs.h"
#include "ebb/libswap/sys/mutex.h"
#include "ebb/libswap/write/fragment_reader.h"
#include "ebb/libswap/write/segments.h"

namespace ebb::libswap {

// CRC32s of ranges of a file whose segments are made several at a time: each says what it holds of
// the ranges, and who needs a whole range's puts them together.
// Thread-safe. Memory: 24 bytes for each range and segment that overlap.
class SharedRangeCrcs {
 public:
  // The ranges that the file's Sealed fragments name. REQUIRES: equal or disjoint (check_plan).
  SharedRangeCrcs(const OutputFile& file, std::uint64_t segment_bytes);

  bool touches(FileRange bytes) const;
  // Of the file's bytes from `offset` on, ascending.
  std::vector<RangeCrc> parts_of(std::uint64_t offset, ByteView bytes) const;

  // Once for each segment, in any order. A file without ranges needs none and waits for none.
  void publish(std::uint64_t segment, std::vector<RangeCrc> parts);
  // Blocks until all segments before this one are published; false after stop().
  bool wait_before(std::uint64_t segment);
  void stop();

  // REQUIRES: every range was named; wait_before(segment) was true. `bytes` begin where `segment`
  // does and reach the ends of the ranges that end in it.
  std::vector<std::uint32_t> crcs_of(const std::vector<FileRange>& ranges, std::uint64_t segment,
                                     ByteView bytes) const;

 private:
  std::uint32_t crc_of(std::size_t range, std::uint64_t segment, ByteView bytes) const
      EBB_REQUIRES(mutex_);

  std::uint64_t segment_bytes_;
  std::vector<FileRange> ranges_;  // ascending, disjoint
  mutable Mutex mutex_;
  Condition grown_;
  std::vector<std::vector<RangeCrc>> parts_ EBB_GUARDED_BY(mutex_);  // by segment
  std::vector<bool> known_ EBB_GUARDED_BY(mutex_);                   // by segment
  std::uint64_t complete_ EBB_GUARDED_BY(mutex_) = 0;  // segments before this one are published
  bool stopped_ EBB_GUARDED_BY(mutex_) = false;
};

// Borrows everything. Memory: what FragmentReader and SharedRangeCrcs say.
class PlainSegments : public SegmentSource {
 public:
  // `block_crcs`: of files written before they are complete.
  PlainSegments(const FragmentReader& reader, std::span<const OutputFile> files,
                std::uint64_t segment_bytes, const formats::BlockCrcs& block_crcs);

  const Segments& segments() const override { return segments_; }
  std::uint64_t buffer_bytes() const override;
  std::size_t buffers() const override { return 2; }
  Result<std::uint64_t> worker_bytes() const override;
  void resume(const Segment& segment, const WrittenSegment& written) override {
    ranges_[segment.file]->publish(segment.number, written.range_crcs);
  }
  Result<MadeSegment> make(const Segment& segment, std::span<std::byte> buffer,
                           std::uint64_t alignment) override;
  std::uint64_t size_of(std::uint32_t file) const override { return files_[file].size; }
  void stop() override;

 private:
  Result<std::vector<RangeCrc>> seal(const Segment& segment, std::span<std::byte> bytes);

  const FragmentReader& reader_;
  std::span<const OutputFile> files_;
  std::uint64_t segment_bytes_;
  const formats::BlockCrcs& block_crcs_;
  Segments segments_;
  std::vector<std::unique_ptr<SharedRangeCrcs>> ranges_;  // by file
  std::vector<bool> sealed_;                              // by file: whether any of it is
};

}  // namespace ebb::libswap
