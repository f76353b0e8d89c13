#include "ebb/libswap/write/segments.h"

#include <algorithm>

#include "ebb/formats/core/check.h"
#include "ebb/formats/core/units.h"

namespace ebb::libswap {

namespace {

void append_runs(const OutputFile& file, std::uint64_t segment_bytes, std::vector<Segment>& out,
                 std::uint32_t number) {
  const std::size_t before = out.size();
  const auto append = [&](Segment segment) {
    segment.index = out.size();
    segment.file = number;
    segment.number = out.size() - before;
    out.push_back(segment);
  };
  for (std::uint64_t i = 0; i < file.items.size(); ++i) {
    const FileRange& item = file.items[i].place;
    const bool fits =
        out.size() > before && item.offset + item.size - out.back().offset <= segment_bytes;
    if (!fits) append({.offset = item.offset, .first_item = i});
    out.back().size = item.offset + item.size - out.back().offset;
    ++out.back().items;
  }
  if (file.head) append({.size = file.head->size});
  if (out.size() == before) append({});
}

}  // namespace

Error another_failed() { return {Code::cancelled, "another piece could not be written"}; }

Segments::Segments(std::span<const OutputFile> files, std::uint64_t segment_bytes, Cut cut)
    : files_(files), segment_bytes_(segment_bytes), firsts_{0} {
  EBB_CHECK(segment_bytes > 0);
  for (std::uint32_t file = 0; file < files.size(); ++file) {
    if (cut == Cut::items) append_runs(files[file], segment_bytes, runs_, file);
    const auto ranges =
        std::max<std::uint64_t>(1, formats::div_ceil(files[file].size, segment_bytes));
    firsts_.push_back(cut == Cut::items ? runs_.size() : firsts_.back() + ranges);
  }
}

Segment Segments::at(std::uint64_t index) const {
  EBB_CHECK(index < count());
  if (!runs_.empty()) return runs_[index];
  const auto after = std::ranges::upper_bound(firsts_, index);
  Segment segment{.index = index, .file = static_cast<std::uint32_t>(after - firsts_.begin() - 1)};
  segment.number = index - firsts_[segment.file];
  segment.offset = segment.number * segment_bytes_;
  segment.size = std::min(segment_bytes_, files_[segment.file].size - segment.offset);
  return segment;
}

}  // namespace ebb::libswap
