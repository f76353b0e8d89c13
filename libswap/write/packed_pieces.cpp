#include "ebb/libswap/write/packed_pieces.h"

#include <algorithm>
#include <utility>

#include "ebb/formats/catalog/range_crcs.h"
#include "ebb/formats/core/check.h"
#include "ebb/formats/core/units.h"
#include "ebb/libswap/sys/mutex.h"
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

Error stopped() { return {Code::cancelled, "another piece could not be written"}; }

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
      const std::uint64_t from = std::max(fragment.offset, first);
      const std::uint64_t until = std::min(fragment.offset + sealed->size, end);
      feed(window.subspan(fed_ - first, from - fed_));
      const ByteVector seal = sealed->bytes(crcs_.of(sealed->over));
      EBB_CHECK(seal.size() == sealed->size);
      std::ranges::copy(std::span(seal).subspan(from - fragment.offset, until - from),
                        window.subspan(from - first).begin());
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

PackedPieces::PackedPieces(const PieceFiller& filler, const EmitPlan& plan,
                           std::uint64_t piece_bytes)
    : filler_(filler),
      files_(plan.files),
      compression_(plan.packing->compression),
      pieces_(plan.files, piece_bytes, Cut::items) {
  for (const OutputFile& file : files_) {
    ends_.push_back(file.head ? file.head->size : 0);
    unsettled_.push_back(file.items.size());
    places_.emplace_back(file.items.size());
  }
}

// The most bytes of a run's frames.
std::uint64_t PackedPieces::bound(const Piece& piece) const {
  const std::span<const PackedItem> items = files_[piece.file].items;
  std::uint64_t bytes = 0;
  for (const PackedItem& item : items.subspan(piece.first_item, piece.items))
    bytes += bound_of(item);
  return bytes;
}

std::uint64_t PackedPieces::buffer_bytes() const {
  std::uint64_t most = 1;
  for (std::uint64_t i = 0; i < pieces_.count(); ++i)
    if (const Piece piece = pieces_.at(i); piece.size <= kKept) most = std::max(most, bound(piece));
  return most;
}

Result<std::uint64_t> PackedPieces::worker_bytes() const {
  std::uint64_t largest = 0;
  for (const OutputFile& file : files_)
    for (const PackedItem& item : file.items) largest = std::max(largest, item.place.size);
  EBB_TRY_ASSIGN(const std::uint64_t context, ZstdWriter::memory(compression_.level, largest));
  return context + kWindow + buffer_bytes();
}

bool PackedPieces::fits(const FinishedPiece& finished) const {
  const Piece piece = pieces_.at(finished.index);
  const auto& lengths = finished.frames.lengths;
  if (lengths.size() != piece.items) return false;
  constexpr std::uint64_t kFarthest = std::uint64_t{1} << 62;
  if (finished.frames.offset > kFarthest) return false;
  for (std::uint64_t i = 0; i < piece.items; ++i)
    if (lengths[i] > bound_of(files_[piece.file].items[piece.first_item + i])) return false;
  return true;
}

void PackedPieces::resume(const Piece& piece, const FinishedPiece& finished) {
  const MutexLock lock(mutex_);
  settle(piece, finished.frames);
}

void PackedPieces::settle(const Piece& piece, const Frames& frames) {
  std::uint64_t end = frames.offset;
  for (std::uint64_t i = 0; i < piece.items; ++i) {
    places_[piece.file][piece.first_item + i] = {end, frames.lengths[i]};
    end += frames.lengths[i];
  }
  ends_[piece.file] = std::max(ends_[piece.file], end);
  unsettled_[piece.file] -= piece.items;
  settled_.notify_all();
}

void PackedPieces::stop() {
  const MutexLock lock(mutex_);
  stopped_.store(true);
  settled_.notify_all();
}

std::uint64_t PackedPieces::size_of(std::uint32_t file) const {
  const MutexLock lock(mutex_);
  return ends_[file];
}

formats::ItemPlaces PackedPieces::places() const {
  const MutexLock lock(mutex_);
  return places_;
}

Result<std::unique_ptr<PackedPieces::Packer>> PackedPieces::take_packer() {
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

void PackedPieces::give_back(std::unique_ptr<Packer> packer) {
  const MutexLock lock(mutex_);
  packers_.push_back(std::move(packer));
}

Result<PackedPieces::Place> PackedPieces::place_for(const Piece& piece, const Workplace& place) {
  if (piece.size <= kKept) return Place{place.bytes, nullptr};
  large_.acquire();
  const std::shared_ptr<void> turn(nullptr, [this](void*) { large_.release(); });
  const std::uint64_t bytes = formats::align_up(bound(piece), OutputFiles::kLargestBlock);
  EBB_TRY_ASSIGN(AlignedBuffer buffer, AlignedBuffer::allocate(bytes));
  struct Large {
    std::shared_ptr<void> turn;
    AlignedBuffer buffer;  // goes first
  };
  auto large = std::make_shared<Large>(Large{turn, std::move(buffer)});
  return Place{large->buffer.bytes(), large};
}

// The runs before it were all taken earlier, so somebody is at them.
Result<MadePiece> PackedPieces::make_head(const Piece& piece) {
  const formats::PackedHead& head = *files_[piece.file].head;
  ByteVector bytes;
  {
    const MutexLock lock(mutex_);
    while (!stopped_.load() && unsettled_[piece.file] != 0) settled_.wait(mutex_);
    if (stopped_.load()) return stopped();
    bytes = head.bytes(places_[piece.file]);
  }
  EBB_CHECK(bytes.size() == head.size);
  const std::uint64_t room = formats::align_up(head.size, OutputFiles::kLargestBlock);
  EBB_TRY_ASSIGN(AlignedBuffer buffer, AlignedBuffer::allocate(room));
  auto memory = std::make_shared<AlignedBuffer>(std::move(buffer));
  std::ranges::copy(bytes, memory->bytes().begin());
  return MadePiece{0, memory->bytes().first(head.size), {pieces_.index_of(piece)}, memory};
}

Result<MadePiece> PackedPieces::make(const Piece& piece, const Workplace& place) {
  if (piece.items == 0 && files_[piece.file].head) return make_head(piece);
  MadePiece made;
  made.finished.index = pieces_.index_of(piece);
  EBB_TRY_ASSIGN(Place into, place_for(piece, place));
  made.memory = std::move(into.memory);
  EBB_TRY_ASSIGN(std::unique_ptr<Packer> packer, take_packer());
  EBB_TRY(pack(*packer, piece, into.bytes, made.finished));
  give_back(std::move(packer));
  std::uint64_t size = 0;
  for (const std::uint64_t length : made.finished.frames.lengths) size += length;
  const MutexLock lock(mutex_);
  made.offset = formats::align_up(ends_[piece.file], place.granule);
  made.bytes = into.bytes.first(size);
  made.finished.frames.offset = made.offset;
  settle(piece, made.finished.frames);
  return made;
}

Result<> PackedPieces::pack(Packer& packer, const Piece& piece, std::span<std::byte> into,
                            FinishedPiece& finished) {
  const OutputFile& file = files_[piece.file];
  for (std::uint64_t i = 0; i < piece.items; ++i) {
    EBB_TRY_ASSIGN(
        const std::uint64_t length,
        pack_item(packer, file, file.items[piece.first_item + i], into, finished.shares));
    finished.frames.lengths.push_back(length);
    into = into.subspan(length);
  }
  return {};
}

Result<std::uint64_t> PackedPieces::pack_item(Packer& packer, const OutputFile& file,
                                              const PackedItem& item, std::span<std::byte> into,
                                              Shares& shares) {
  const auto [offset, size] = item.place;
  const bool plain = item.pack == Pack::as_it_is;
  if (!plain) EBB_TRY(packer.frames.begin(size, into));
  Sealer sealer(file, item.place);
  for (std::uint64_t at = 0; at < size; at += kWindow) {
    if (stopped_.load()) return stopped();
    const std::uint64_t part = std::min(kWindow, size - at);
    const auto window = plain ? into.subspan(at, part) : packer.window.bytes().first(part);
    EBB_TRY_ASSIGN(Shares added, filler_.fill(file, offset + at, window));
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
