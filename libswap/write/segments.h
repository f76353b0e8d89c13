// The segments that output files are written in, and who makes their bytes.
//
// Segments are ranges of equal size, the last one of a file what is left; or, of files that are
// compressed item by item, runs of whole items: as many as fit that size, or one that is larger;
// and last their head. An empty file is one empty segment, so that somebody makes it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ebb/formats/catalog/emit.h"
#include "ebb/formats/core/result.h"
#include "ebb/libswap/publish/written_segment.h"

namespace ebb::libswap {

struct Segment {
  std::uint64_t index = 0;  // among those of all files
  std::uint32_t file = 0;
  std::uint64_t number = 0;  // among those of its file
  std::uint64_t offset = 0;  // in the file, bytes
  std::uint64_t size = 0;
  // Of the file's items, where those are compressed; offset and size are theirs before that.
  std::uint64_t first_item = 0;
  std::uint64_t items = 0;  // 0 of a head
};

enum class Cut : std::uint8_t { ranges, items };

class Segments {
 public:
  // REQUIRES: segment_bytes > 0. Borrows the files.
  Segments(std::span<const OutputFile> files, std::uint64_t segment_bytes, Cut cut);

  std::uint64_t count() const { return firsts_.back(); }
  std::uint64_t count_of(std::uint32_t file) const { return firsts_[file + 1] - firsts_[file]; }
  Segment at(std::uint64_t index) const;  // file by file, ascending

 private:
  std::span<const OutputFile> files_;
  std::uint64_t segment_bytes_;
  std::vector<std::uint64_t> firsts_;  // of each file, and the end
  std::vector<Segment> runs_;          // by index, where items are cut
};

struct MadeSegment {
  std::uint64_t offset = 0;  // in the file
  // Of the worker's buffer, or of `memory`; with space behind it up to a disk's block.
  std::span<std::byte> bytes;
  WrittenSegment written;
  std::shared_ptr<void> memory = nullptr;  // goes when the bytes are written
};

// What the bytes of the segments of some files are, and where in their file they go. Thread-safe,
// but for resume(). Segments are asked for in order, by several workers at a time.
class SegmentSource {
 public:
  virtual ~SegmentSource() = default;
  virtual const Segments& segments() const = 0;
  virtual std::uint64_t buffer_bytes() const = 0;
  // How many of them a worker has: while one is written, it makes the next segment in another.
  virtual std::size_t buffers() const = 0;
  // What a worker needs at most: its buffers, and what make() takes beside FragmentReader.
  virtual Result<std::uint64_t> worker_bytes() const = 0;
  // Of an earlier attempt, durable: before anything is made. REQUIRES: what fits the segment.
  virtual void resume(const Segment& segment, const WrittenSegment& written) = 0;
  // `buffer`: buffer_bytes(), with space behind them up to a disk's block. The offset of the
  // result is a multiple of `alignment`.
  virtual Result<MadeSegment> make(const Segment& segment, std::span<std::byte> buffer,
                                   std::uint64_t alignment) = 0;
  // Of the file in bytes. REQUIRES: all of its segments are made.
  virtual std::uint64_t size_of(std::uint32_t file) const = 0;
  // Whoever waits in make() for another segment fails, and long work ends early.
  virtual void stop() = 0;
};

Error another_failed();  // for whoever waits in make()

}  // namespace ebb::libswap
