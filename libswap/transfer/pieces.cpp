#include "libswap/transfer/pieces.h"

#include <algorithm>

#include "formats/core/check.h"
#include "formats/core/units.h"

namespace libswap {

Pieces::Pieces(std::span<const formats::OutputFile> files, std::uint64_t piece_bytes)
    : files_(files), piece_bytes_(piece_bytes), firsts_{0} {
  CHECK(piece_bytes > 0);
  for (const formats::OutputFile& file : files)
    firsts_.push_back(firsts_.back() +
                      std::max<std::uint64_t>(1, formats::div_ceil(file.size, piece_bytes)));
}

Piece Pieces::at(std::uint64_t index) const {
  CHECK(index < count());
  const auto after = std::ranges::upper_bound(firsts_, index);
  Piece piece;
  piece.file = static_cast<std::uint32_t>(after - firsts_.begin() - 1);
  piece.number = index - firsts_[piece.file];
  piece.offset = piece.number * piece_bytes_;
  piece.size = std::min(piece_bytes_, files_[piece.file].size - piece.offset);
  return piece;
}

}  // namespace libswap
