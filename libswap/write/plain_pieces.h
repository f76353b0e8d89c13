// PlainPieces: pieces that are parts of their files as the plan has them.
//
// A piece with Sealed bytes fills everything else first, publishes its part of the CRCs and then
// waits for those of the pieces before it; they were all taken earlier, so somebody is at them.
#pragma once

#include <vector>

#include "ebb/formats/catalog/range_crcs.h"
#include "ebb/libswap/write/piece_filler.h"
#include "ebb/libswap/write/piece_maker.h"
#include "ebb/libswap/write/range_parts.h"

namespace ebb::libswap {

// Borrows everything. Memory: what PieceFiller and RangeParts say.
class PlainPieces : public PieceMaker {
 public:
  static constexpr std::size_t kBuffers = 2;

  // `blocks`: of files written before they are complete; nullptr: no file has any.
  PlainPieces(const PieceFiller& filler, std::span<const OutputFile> files,
              std::uint64_t piece_bytes, const formats::BlockCrcs* blocks);

  const Pieces& pieces() const override { return pieces_; }
  std::uint64_t buffer_bytes() const override;
  std::size_t buffers() const override { return kBuffers; }
  void resume(const Piece& piece, const FinishedPiece& finished) override;
  Result<MadePiece> make(const Piece& piece, const Workplace& place) override;
  std::uint64_t size_of(std::uint32_t file) const override { return files_[file].size; }
  void stop() override;

 private:
  Result<> seal(const Piece& piece, std::span<std::byte> bytes);

  const PieceFiller& filler_;
  std::span<const OutputFile> files_;
  std::uint64_t piece_bytes_;
  const formats::BlockCrcs* blocks_;
  Pieces pieces_;
  std::vector<std::unique_ptr<RangeParts>> ranges_;  // by file
  std::vector<bool> sealed_;                         // by file: whether any of it is
};

}  // namespace ebb::libswap
