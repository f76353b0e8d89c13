// The pieces that output files are written in: ranges of equal size, the last one of a file what is
// left; or, of files that are compressed item by item, runs of whole items: as many as fit that
// size, or one that is larger; and last their head. An empty file is one empty piece, so that
// somebody makes it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ebb/formats/catalog/emit.h"

namespace ebb::libswap {

struct Piece {
  std::uint32_t file = 0;
  std::uint64_t number = 0;  // among those of its file
  std::uint64_t offset = 0;  // in the file, bytes
  std::uint64_t size = 0;
  // Of the file's items, where those are compressed; offset and size are theirs before that.
  std::uint64_t first_item = 0;
  std::uint64_t items = 0;  // 0 of a head
};

enum class Cut : std::uint8_t { ranges, items };

class Pieces {
 public:
  // REQUIRES: piece_bytes > 0. Borrows the files.
  Pieces(std::span<const OutputFile> files, std::uint64_t piece_bytes, Cut cut);

  std::uint64_t count() const { return firsts_.back(); }
  std::uint64_t count_of(std::uint32_t file) const { return firsts_[file + 1] - firsts_[file]; }
  std::uint64_t index_of(const Piece& piece) const { return firsts_[piece.file] + piece.number; }
  Piece at(std::uint64_t index) const;  // file by file, ascending

 private:
  std::span<const OutputFile> files_;
  std::uint64_t piece_bytes_;
  std::vector<std::uint64_t> firsts_;  // of each file, and the end
  std::vector<Piece> runs_;            // by index, where items are cut
};

}  // namespace ebb::libswap
