#include "ebb/libswap/write/packed_segments.h"

#include <algorithm>
#include <utility>

#include "ebb/formats/catalog/range_crcs.h"
#include "ebb/formats/core/check.h"
#include "ebb/formats/core/units.h"
#include "ebb/libswap/write/output_files.h"

namespace ebb::libswap {

using formats::Pack;
using formats::PackedItem;
using formats::Sealed;
using formats::ZstdWriter;

namespace {

constexpr std::uint64_t kWindow = formats::MiB;  // of elements; a stop is noticed once in one

std::uint64_t bound_of(const PackedItem& item) {
  return item.pack == Pack::as_it_is ? item.place.size : ZstdWriter::bound(item.place.size);
}

// Takes the CRCs of what goes by, and puts the seals into it.
class Sealer {
 public:
  Sealer(const OutputFile& file, const FileRange& item)
      : fragments_(fragments_in(file, item.offset, item.size)),
        crcs_(fragments_, item.offset),
        fed_(item.offset) {}

  // The item's next bytes.
  void pass(std::span<std::byte> window) {
    const std::uint64_t first = fed_;
    const std::uint64_t end = first + window.size();
    for (const Fragment& fragment : fragments_) {
      const auto* sealed = std::get_if<Sealed>(&fragment.data);
      if (sealed == nullptr || fragment.offset + sealed->size <= first || fragment.offset >= end)
        continue;
      feed(window.subspan(fed_ - first, std::max(fragment.offset, first) - fed_));
      const ByteVector seal = sealed->bytes(crcs_.of(sealed->over));
      EBB_CHECK(seal.size() == sealed->size);
      copy_overlap(seal, fragment.offset, window, first);
    }
    feed(window.subspan(fed_ - first));
  }

 private:
  void feed(ByteView bytes) {
    crcs_.feed(bytes);
    fed_ += bytes.size();
  }

  std::span<const Fragment> fragments_;
  formats::RangeCrcs crcs_;
  std::uint64_t fed_;  // up to here, in the file
};

}  // namespace

PackedSegments::PackedSegments(const FragmentReader& reader, const EmitPlan& plan,
                               std::uint64_t segment_bytes)
    : reader_(reader),
      files_(plan.files),
      compression_(plan.packing->compression),
      segments_(plan.files, segment_bytes, Cut::items) {
  for (const OutputFile& file : files_) {
    ends_.push_back(file.head ? file.head->size : 0);
    unsettled_.push_back(file.items.size());
    places_.emplace_back(file.items.size());
  }
}

// The most bytes of a run's frames.
std::uint64_t PackedSegments::bound(const Segment& segment) const {
  const std::span<const PackedItem> items = files_[segment.file].items;
  std::uint64_t bytes = 0;
  for (const PackedItem& item : items.subspan(segment.first_item, segment.items))
    bytes += bound_of(item);
  return bytes;
}

std::uint64_t PackedSegments::buffer_bytes() const {
  std::uint64_t most = 1;
  for (std::uint64_t i = 0; i < segments_.count(); ++i)
    if (const Segment segment = segments_.at(i); segment.size <= kKept)
      most = std::max(most, bound(segment));
  return most;
}

Result<std::uint64_t> PackedSegments::worker_bytes() const {
  std::uint64_t largest = 0;
  for (const OutputFile& file : files_)
    for (const PackedItem& item : file.items) largest = std::max(largest, item.place.size);
  EBB_TRY_ASSIGN(const std::uint64_t context, ZstdWriter::memory(compression_.level, largest));
  return context + kWindow + buffer_bytes();
}

bool PackedSegments::fits(const WrittenSegment& written) const {
  const Segment segment = segments_.at(written.index);
  const auto& lengths = written.frames.lengths;
  if (lengths.size() != segment.items) return false;
  constexpr std::uint64_t kFarthest = std::uint64_t{1} << 62;
  if (written.frames.offset > kFarthest) return false;
  for (std::uint64_t i = 0; i < segment.items; ++i)
    if (lengths[i] > bound_of(files_[segment.file].items[segment.first_item + i])) return false;
  return true;
}

void PackedSegments::resume(const Segment& segment, const WrittenSegment& written) {
  const MutexLock lock(mutex_);
  settle(segment, written.frames);
}

void PackedSegments::settle(const Segment& segment, const SegmentFrames& frames) {
  std::uint64_t end = frames.offset;
  for (std::uint64_t i = 0; i < segment.items; ++i) {
    places_[segment.file][segment.first_item + i] = {end, frames.lengths[i]};
    end += frames.lengths[i];
  }
  ends_[segment.file] = std::max(ends_[segment.file], end);
  unsettled_[segment.file] -= segment.items;
  settled_.notify_all();
}

void PackedSegments::stop() {
  const MutexLock lock(mutex_);
  stopped_.store(true);
  settled_.notify_all();
}

std::uint64_t PackedSegments::size_of(std::uint32_t file) const {
  const MutexLock lock(mutex_);
  return ends_[file];
}

formats::ItemPlaces PackedSegments::places() const {
  const MutexLock lock(mutex_);
  return places_;
}

Result<std::unique_ptr<PackedSegments::Packer>> PackedSegments::take_packer() {
  {
    const MutexLock lock(mutex_);
    if (!packers_.empty()) {
      std::unique_ptr<Packer> packer = std::move(packers_.back());
      packers_.pop_back();
      return packer;
    }
  }
  EBB_TRY_ASSIGN(ZstdWriter frames, ZstdWriter::make(compression_.level));
  EBB_TRY_ASSIGN(AlignedBuffer window, AlignedBuffer::allocate(kWindow));
  return std::make_unique<Packer>(Packer{std::move(frames), std::move(window)});
}

// Memory of its own for a run that is larger than the worker's buffer; one at a time.
Result<> PackedSegments::reserve(const Segment& segment, MadeSegment& made) {
  if (segment.size <= kKept) return {};
  large_.acquire();
  const std::shared_ptr<void> turn(nullptr, [this](void*) { large_.release(); });
  const std::uint64_t bytes = formats::align_up(bound(segment), OutputFiles::kLargestBlock);
  EBB_TRY_ASSIGN(AlignedBuffer buffer, AlignedBuffer::allocate(bytes));
  struct Large {
    std::shared_ptr<void> turn;
    AlignedBuffer buffer;  // goes first
  };
  auto large = std::make_shared<Large>(Large{turn, std::move(buffer)});
  made.bytes = large->buffer.bytes();
  made.memory = std::move(large);
  return {};
}

// The runs before it were all taken earlier, so somebody is at them.
Result<MadeSegment> PackedSegments::make_head(const Segment& segment) {
  const formats::PackedHead& head = *files_[segment.file].head;
  ByteVector bytes;
  {
    const MutexLock lock(mutex_);
    while (!stopped_.load() && unsettled_[segment.file] != 0) settled_.wait(mutex_);
    if (stopped_.load()) return another_failed();
    bytes = head.bytes(places_[segment.file]);
  }
  EBB_CHECK(bytes.size() == head.size);
  const std::uint64_t capacity = formats::align_up(head.size, OutputFiles::kLargestBlock);
  EBB_TRY_ASSIGN(AlignedBuffer buffer, AlignedBuffer::allocate(capacity));
  auto memory = std::make_shared<AlignedBuffer>(std::move(buffer));
  std::ranges::copy(bytes, memory->bytes().begin());
  return MadeSegment{0, memory->bytes().first(head.size), {segment.index}, memory};
}

Result<MadeSegment> PackedSegments::make(const Segment& segment, std::span<std::byte> buffer,
                                         std::uint64_t alignment) {
  if (segment.items == 0 && files_[segment.file].head) return make_head(segment);
  MadeSegment made{0, buffer, {segment.index}};
  EBB_TRY(reserve(segment, made));
  EBB_TRY_ASSIGN(std::unique_ptr<Packer> packer, take_packer());
  EBB_TRY(pack(*packer, segment, made));
  const MutexLock lock(mutex_);
  packers_.push_back(std::move(packer));
  made.offset = formats::align_up(ends_[segment.file], alignment);
  made.written.frames.offset = made.offset;
  settle(segment, made.written.frames);
  return made;
}

Result<> PackedSegments::pack(Packer& packer, const Segment& segment, MadeSegment& made) {
  const OutputFile& file = files_[segment.file];
  std::uint64_t size = 0;
  for (std::uint64_t i = 0; i < segment.items; ++i) {
    EBB_TRY_ASSIGN(const std::uint64_t length,
                   pack_item(packer, file, file.items[segment.first_item + i],
                             made.bytes.subspan(size), made.written.shares));
    made.written.frames.lengths.push_back(length);
    size += length;
  }
  made.bytes = made.bytes.first(size);
  return {};
}

Result<std::uint64_t> PackedSegments::pack_item(Packer& packer, const OutputFile& file,
                                                const PackedItem& item, std::span<std::byte> into,
                                                Shares& shares) {
  const auto [offset, size] = item.place;
  const bool plain = item.pack == Pack::as_it_is;
  if (!plain) EBB_TRY(packer.frames.begin(size, into));
  Sealer sealer(file, item.place);
  for (std::uint64_t at = 0; at < size; at += kWindow) {
    if (stopped_.load()) return another_failed();
    const std::uint64_t part = std::min(kWindow, size - at);
    const auto window = plain ? into.subspan(at, part) : packer.window.bytes().first(part);
    EBB_TRY_ASSIGN(Shares added, reader_.read(file, offset + at, window));
    for (auto [from, to] :
         {std::pair(&added.stored, &shares.stored), std::pair(&added.derived, &shares.derived)})
      to->insert(to->end(), from->begin(), from->end());
    sealer.pass(window);
    if (!plain) EBB_TRY(packer.frames.feed(window));
  }
  if (plain) return size;
  return packer.frames.end();
}

}  // namespace ebb::libswap
