// Writes files of a plan with several workers, segment by segment.
//
// The workers take the segments in order, but for those that an earlier attempt has made. Each has
// two buffers (or one, SegmentSource says): while one is being written through the I/O queue it
// fills the other, so that reading, computing and writing overlap, across files too. What a segment
// is and where it goes says a SegmentSource. The calling thread is the committer: it collects what
// was written, makes it durable in batches and reports.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <span>

#include "ebb/formats/catalog/range_crcs.h"
#include "ebb/libswap/write/output_files.h"
#include "ebb/libswap/write/segments.h"

namespace ebb::libswap {

struct SegmentWriterOptions {
  std::uint32_t workers = 1;
  OutputFiles::Settings files;
  const std::atomic<bool>* cancel = nullptr;  // polled once per segment
  std::chrono::milliseconds commit_interval{1000};
  // Segments that are durable already: they are not made, and count as neither written nor durable.
  // REQUIRES: each once, of these files, and what fits them.
  std::span<const WrittenSegment> durable_before = {};
  formats::BlockCrcs& block_crcs;  // borrowed; those of files written before are complete
  // On the calling thread, each segment once, when it is written.
  std::function<void(const Segment& segment, const Shares& shares)> written = nullptr;
  // On the calling thread, each segment once, when its data is durable; an error ends everything.
  std::function<Result<>(std::span<const WrittenSegment> segments)> durable = nullptr;
};

// Blocks until all of the files below `directory`, which holds their subdirectories, are durable;
// then they are closed. After an error or Code::cancelled nothing of it runs any more; what was
// written before a cancellation becomes durable first.
// Memory: SegmentSource::buffers() for each worker, and what the source takes. REQUIRES: the source
// is of these files, and new.
Result<> write_segments(IoQueue& io, SegmentSource& source, std::span<const OutputFile> files,
                        const fs::path& directory, const SegmentWriterOptions& options);

Error stopped_on_request();  // Code::cancelled

}  // namespace ebb::libswap
