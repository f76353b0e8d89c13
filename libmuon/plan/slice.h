// Slice: which elements of a row-major parameter a tensor of a layout is: `width` of them, one run
// each `pitch` from `first` on, `elems` in all; in that order they are the tensor's own row-major
// elements. A whole parameter, a run of it, or what a rank has where one dimension is cut.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ebb/formats/layout/box.h"

namespace ebb::libmuon {

struct Slice {
  std::uint64_t first = 0, width = 0, pitch = 0, elems = 0;

  static Slice run(FlatRange range) { return {range.first, range.count, range.count, range.count}; }
  // Part `index` of `parts` equal ones of a dimension. REQUIRES: they are.
  static Slice part(const Shape& shape, std::size_t dimension, std::uint32_t index,
                    std::uint32_t parts);

  bool operator==(const Slice&) const = default;
  bool is_run() const { return width == elems; }

  // How many of its elements lie before an element of the parameter.
  std::uint64_t before(std::uint64_t element) const {
    if (element <= first || elems == 0) return 0;
    const std::uint64_t past = element - first;
    return std::min(elems, past / pitch * width + std::min(width, past % pitch));
  }
  // Which of its elements lie in a range of the parameter.
  FlatRange local(FlatRange range) const {
    const std::uint64_t begin = before(range.first);
    return {begin, before(range.first + range.count) - begin};
  }
  // From the first of some of its elements to their last. REQUIRES: there are some.
  FlatRange bounds(FlatRange range) const {
    const std::uint64_t begin = place(range.first);
    return {begin, place(range.first + range.count - 1) + 1 - begin};
  }
  // Where one of its elements lies in the parameter.
  std::uint64_t place(std::uint64_t element) const {
    return first + element / width * pitch + element % width;
  }
  // Where some of its elements lie in the parameter: visit(FlatRange) for each run, ascending.
  template <typename Visit>
  void for_runs(FlatRange range, const Visit& visit) const {
    for (std::uint64_t at = range.first; at < range.first + range.count;) {
      const std::uint64_t count = std::min(width - at % width, range.first + range.count - at);
      visit(FlatRange{place(at), count});
      at += count;
    }
  }
};

}  // namespace ebb::libmuon
