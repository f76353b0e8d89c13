// Slice: which elements of a row-major parameter a tensor of a layout is: runs of `width` from
// `first` on, one each `pitch`; where they come in blocks, so many of them make `block` elements,
// one block each `block_pitch`; `elems` in all. In that order they are the tensor's own row-major
// elements. A whole parameter, a run of it, or the box that a rank has where dimensions are cut.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "ebb/formats/layout/box.h"

namespace ebb::libmuon {

struct Slice {
  std::uint64_t first = 0, width = 0, pitch = 0, elems = 0;
  std::uint64_t block = elems, block_pitch = ~std::uint64_t{0};  // as here: one block

  static Slice run(FlatRange range) { return {range.first, range.count, range.count, range.count}; }
  // A box of a parameter of that shape; empty where its runs lie in blocks of blocks, which takes
  // three dimensions that are cut behind one that has more than one place. REQUIRES: it is inside.
  static std::optional<Slice> of(const Box& box, const Shape& shape);

  bool operator==(const Slice&) const = default;
  bool is_run() const { return width == elems; }

  // How many of its elements lie before an element of the parameter.
  std::uint64_t before(std::uint64_t element) const {
    if (element <= first || elems == 0) return 0;
    const std::uint64_t past = element - first, inside = past % block_pitch;
    const std::uint64_t of_block = inside / pitch * width + std::min(width, inside % pitch);
    return std::min(elems, past / block_pitch * block + std::min(block, of_block));
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
    const std::uint64_t inside = element % block;
    return first + element / block * block_pitch + inside / width * pitch + inside % width;
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
