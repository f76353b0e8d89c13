#include "ebb/libswap/write/plain_pieces.h"

#include <algorithm>

#include "ebb/formats/core/check.h"

namespace ebb::libswap {

using formats::Sealed;

PlainPieces::PlainPieces(const PieceFiller& filler, std::span<const OutputFile> files,
                         std::uint64_t piece_bytes, const formats::BlockCrcs* blocks)
    : filler_(filler),
      files_(files),
      piece_bytes_(piece_bytes),
      blocks_(blocks),
      pieces_(files, piece_bytes, Cut::ranges) {
  for (const OutputFile& file : files) {
    ranges_.push_back(std::make_unique<RangeParts>(file, piece_bytes));
    sealed_.push_back(std::ranges::any_of(file.fragments, [](const Fragment& fragment) {
      return std::holds_alternative<Sealed>(fragment.data);
    }));
  }
}

std::uint64_t PlainPieces::buffer_bytes() const {
  std::uint64_t largest = 0;
  for (const OutputFile& file : files_) largest = std::max(largest, file.size);
  return std::clamp<std::uint64_t>(largest, 1, piece_bytes_);
}

void PlainPieces::resume(const Piece& piece, const FinishedPiece& finished) {
  ranges_[piece.file]->publish(piece.number, finished.ranges);
}

Result<MadePiece> PlainPieces::make(const Piece& piece, const Workplace& place) {
  MadePiece made{piece.offset, place.bytes.first(piece.size), {}};
  made.finished.index = pieces_.index_of(piece);
  EBB_TRY_ASSIGN(made.finished.shares, filler_.fill(files_[piece.file], piece.offset, made.bytes));
  if (sealed_[piece.file]) EBB_TRY(seal(piece, made.bytes));
  made.finished.ranges = ranges_[piece.file]->published(piece.number);
  if (blocks_ != nullptr)
    made.finished.blocks = blocks_->shares(files_[piece.file], piece.offset, made.bytes);
  return made;
}

// The CRCs of the piece, and its Sealed bytes out of those of others.
Result<> PlainPieces::seal(const Piece& piece, std::span<std::byte> bytes) {
  RangeParts& ranges = *ranges_[piece.file];
  std::vector<const Fragment*> seals;
  bool sealed_twice = false;  // some range covers what is only put in here
  for (const Fragment& fragment : fragments_in(files_[piece.file], piece.offset, piece.size)) {
    const auto* sealed = std::get_if<Sealed>(&fragment.data);
    if (sealed == nullptr || fragment.offset + sealed->size <= piece.offset) continue;
    seals.push_back(&fragment);
    sealed_twice = sealed_twice || ranges.touches({fragment.offset, sealed->size});
  }
  if (!sealed_twice) ranges.publish(piece.number, ranges.parts_of(piece.offset, bytes));
  if (!seals.empty() && !ranges.wait_before(piece.number))
    return Error{Code::cancelled, "another piece could not be written"};
  for (const Fragment* fragment : seals) {
    const auto& sealed = std::get<Sealed>(fragment->data);
    const ByteVector seal = sealed.blocks_of
                                ? sealed.bytes(blocks_->of(*sealed.blocks_of))
                                : sealed.bytes(ranges.crcs_of(sealed.over, piece.number, bytes));
    EBB_CHECK(seal.size() == sealed.size);
    const std::uint64_t first = std::max(fragment->offset, piece.offset);
    const std::uint64_t last = std::min(fragment->offset + sealed.size, piece.offset + piece.size);
    std::ranges::copy(std::span(seal).subspan(first - fragment->offset, last - first),
                      bytes.subspan(first - piece.offset).begin());
  }
  if (sealed_twice) ranges.publish(piece.number, ranges.parts_of(piece.offset, bytes));
  return {};
}

void PlainPieces::stop() {
  for (const auto& ranges : ranges_) ranges->stop();
}

}  // namespace ebb::libswap
