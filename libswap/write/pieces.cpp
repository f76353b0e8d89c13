#include "ebb/libswap/write/pieces.h"

#include <algorithm>

#include "ebb/formats/core/check.h"
#include "ebb/formats/core/units.h"

namespace ebb::libswap {

namespace {

void append_runs(const OutputFile& file, std::uint64_t piece_bytes, std::vector<Piece>& out,
                 std::uint32_t number) {
  const std::size_t before = out.size();
  for (std::uint64_t i = 0; i < file.items.size(); ++i) {
    const FileRange& item = file.items[i].place;
    const bool fits =
        out.size() > before && item.offset + item.size - out.back().offset <= piece_bytes;
    if (!fits) out.push_back({number, out.size() - before, item.offset, 0, i, 0});
    out.back().size = item.offset + item.size - out.back().offset;
    ++out.back().items;
  }
  if (file.head) out.push_back({number, out.size() - before, 0, file.head->size, 0, 0});
  if (out.size() == before) out.push_back({number, 0, 0, 0, 0, 0});
}

}  // namespace

Pieces::Pieces(std::span<const OutputFile> files, std::uint64_t piece_bytes, Cut cut)
    : files_(files), piece_bytes_(piece_bytes), firsts_{0} {
  EBB_CHECK(piece_bytes > 0);
  if (cut == Cut::items) {
    for (std::uint32_t file = 0; file < files.size(); ++file) {
      append_runs(files[file], piece_bytes, runs_, file);
      firsts_.push_back(runs_.size());
    }
    return;
  }
  for (const OutputFile& file : files)
    firsts_.push_back(firsts_.back() +
                      std::max<std::uint64_t>(1, formats::div_ceil(file.size, piece_bytes)));
}

Piece Pieces::at(std::uint64_t index) const {
  EBB_CHECK(index < count());
  if (!runs_.empty()) return runs_[index];
  const auto after = std::ranges::upper_bound(firsts_, index);
  Piece piece;
  piece.file = static_cast<std::uint32_t>(after - firsts_.begin() - 1);
  piece.number = index - firsts_[piece.file];
  piece.offset = piece.number * piece_bytes_;
  piece.size = std::min(piece_bytes_, files_[piece.file].size - piece.offset);
  return piece;
}

}  // namespace ebb::libswap
