// PackedSegments: segments that are runs of items, each compressed into one frame on its way, or as
// it is; and last the head of their file, which says where they are.
//
// Where the frames of a run lie is known once they are made: at the end of the file as it is then.
// So files grow in the order in which runs are finished, without gaps but for blocks of the disk.
// The elements go through in windows; of what is compressed a whole run is held.
#pragma once

#include <atomic>
#include <semaphore>
#include <vector>

#include "ebb/formats/core/compress.h"
#include "ebb/libswap/sys/aligned_buffer.h"
#include "ebb/libswap/sys/mutex.h"
#include "ebb/libswap/write/fragment_reader.h"
#include "ebb/libswap/write/segments.h"

namespace ebb::libswap {

// Borrows everything. Memory: worker_bytes() for each worker, frames in buffers among them; and the
// frames of one run more, where runs are larger than kKept.
class PackedSegments : public SegmentSource {
 public:
  // Runs up to this size are made in each worker's own buffer, larger ones in turns.
  static constexpr std::uint64_t kKept = std::uint64_t{16} << 20;

  // REQUIRES: the plan has `packing`.
  PackedSegments(const FragmentReader& reader, const EmitPlan& plan, std::uint64_t segment_bytes);

  const Segments& segments() const override { return segments_; }
  std::uint64_t buffer_bytes() const override;
  // Making takes so much longer than writing that a second one is worth less than another worker.
  std::size_t buffers() const override { return 1; }
  void resume(const Segment& segment, const WrittenSegment& written) override;
  Result<std::uint64_t> worker_bytes() const override;
  Result<MadeSegment> make(const Segment& segment, std::span<std::byte> buffer,
                           std::uint64_t alignment) override;
  std::uint64_t size_of(std::uint32_t file) const override;
  void stop() override;

  // Whether what an earlier attempt says of a segment can be.
  bool fits(const WrittenSegment& written) const;
  // Where the items are. REQUIRES: all segments are made.
  formats::ItemPlaces places() const;

 private:
  struct Packer {
    formats::ZstdWriter frames;
    AlignedBuffer window;
  };
  Result<std::unique_ptr<Packer>> take_packer();
  Result<MadeSegment> make_head(const Segment& segment);
  std::uint64_t bound(const Segment& segment) const;
  Result<> reserve(const Segment& segment, MadeSegment& made);
  Result<> pack(Packer& packer, const Segment& segment, MadeSegment& made);
  Result<std::uint64_t> pack_item(Packer& packer, const OutputFile& file,
                                  const formats::PackedItem& item, std::span<std::byte> into,
                                  Shares& shares);
  void settle(const Segment& segment, const SegmentFrames& frames) EBB_REQUIRES(mutex_);

  const FragmentReader& reader_;
  const std::vector<OutputFile>& files_;
  formats::Compression compression_;
  Segments segments_;
  std::atomic<bool> stopped_ = false;
  std::binary_semaphore large_{1};  // who makes a run beyond kKept
  mutable Mutex mutex_;
  Condition settled_;
  std::vector<std::unique_ptr<Packer>> packers_ EBB_GUARDED_BY(mutex_);  // that nobody uses
  std::vector<std::uint64_t> ends_ EBB_GUARDED_BY(mutex_);  // of what lies in each file
  // Items of each file that lie nowhere yet.
  std::vector<std::uint64_t> unsettled_ EBB_GUARDED_BY(mutex_);
  formats::ItemPlaces places_ EBB_GUARDED_BY(mutex_);
};

}  // namespace ebb::libswap
