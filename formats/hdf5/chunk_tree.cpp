#include "ebb/formats/hdf5/chunk_tree.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "ebb/formats/core/check.h"
#include "ebb/formats/core/units.h"
#include "ebb/formats/hdf5/description.h"
#include "ebb/formats/hdf5/messages.h"

namespace ebb::formats::hdf5 {
namespace {

constexpr std::uint64_t kChildren = 64;  // twice the K that a superblock of version 2 stands for
constexpr std::uint64_t kHead = 4 + 1 + 1 + 2 + 8 + 8;

std::uint64_t key_bytes(const ChunkGrid& grid) { return 4 + 4 + 8 * (grid.shape.size() + 1); }

std::uint64_t node_bytes(const ChunkGrid& grid) {
  return kHead + kChildren * 8 + (kChildren + 1) * key_bytes(grid);
}

// Nodes of each level, the leaves first.
std::vector<std::uint64_t> levels_of(const ChunkGrid& grid) {
  std::vector<std::uint64_t> levels = {div_ceil(grid.count(), kChildren)};
  while (levels.back() > 1) levels.push_back(div_ceil(levels.back(), kChildren));
  return levels;
}

class TreeWriter {
 public:
  TreeWriter(const ChunkGrid& grid, std::uint64_t at, std::span<const FileRange> places)
      : grid_(grid), places_(places), levels_(levels_of(grid)) {
    starts_.resize(levels_.size());
    for (std::size_t level = levels_.size(); level-- > 0;) {
      starts_[level] = at;
      at += levels_[level] * node_bytes(grid);
    }
  }

  ByteVector write() {
    for (std::size_t level = levels_.size(); level-- > 0;)
      for (std::uint64_t node = 0; node < levels_[level]; ++node) append_node(level, node);
    return std::move(out_);
  }

 private:
  std::uint64_t address(std::size_t level, std::uint64_t node) const {
    return node < levels_[level] ? starts_[level] + node * node_bytes(grid_) : kNowhere;
  }

  void append_node(std::size_t level, std::uint64_t node) {
    const std::size_t begin = out_.size();
    const std::uint64_t below = level == 0 ? grid_.count() : levels_[level - 1];
    const std::uint64_t first = node * kChildren;
    const std::uint64_t used = std::min(kChildren, below - first);
    std::uint64_t chunks = 1;  // below each child
    for (std::size_t i = 0; i < level; ++i) chunks *= kChildren;
    constexpr std::uint8_t kOfRawData = 1;
    put(out_, std::string_view("TREE"), kOfRawData, u8(level), u16(used),
        node == 0 ? kNowhere : address(level, node - 1), address(level, node + 1));
    for (std::uint64_t child = first; child < first + used; ++child) {
      append_key(child * chunks);
      put(out_, level == 0 ? places_[child].offset : address(level - 1, child));
    }
    append_key((first + used) * chunks);
    out_.resize(begin + node_bytes(grid_));
  }

  // Of a chunk, or, with the number behind the last one's, the end.
  void append_key(std::uint64_t chunk) {
    const bool end = chunk >= grid_.count();
    constexpr std::uint32_t kNoFilterSkipped = 0;
    put(out_, u32(end ? 0 : places_[chunk].size), kNoFilterSkipped);
    const Box box = grid_.box(end ? grid_.count() - 1 : chunk);
    for (std::size_t d = 0; d < grid_.shape.size(); ++d)
      put(out_, box.offset[d] + (end ? grid_.chunk[d] : 0));
    put(out_, std::uint64_t{end ? grid_.elem_bytes : 0});
  }

  const ChunkGrid& grid_;
  std::span<const FileRange> places_;
  std::vector<std::uint64_t> levels_;
  std::vector<std::uint64_t> starts_;  // where the nodes of each level lie
  ByteVector out_;
};

}  // namespace

std::uint64_t ChunkGrid::count() const {
  std::uint64_t count = 1;
  for (std::size_t d = 0; d < shape.size(); ++d) count *= div_ceil(shape[d], chunk[d]);
  return count;
}

std::uint64_t ChunkGrid::chunk_bytes() const { return volume(chunk) * elem_bytes; }

Box ChunkGrid::box(std::uint64_t number) const {
  Box box{Shape(shape.size()), Shape(shape.size())};
  for (std::size_t d = shape.size(); d-- > 0;) {
    const std::uint64_t cells = div_ceil(shape[d], chunk[d]);
    box.offset[d] = number % cells * chunk[d];
    box.extent[d] = std::min(chunk[d], shape[d] - box.offset[d]);
    number /= cells;
  }
  return box;
}

ChunkGrid grid_of(const Shape& shape, std::uint32_t elem_bytes, std::uint64_t bytes) {
  const std::uint64_t most = std::max<std::uint64_t>(1, bytes / elem_bytes);
  ChunkGrid grid{shape, shape, elem_bytes};
  for (std::size_t d = 0; d < shape.size() && volume(grid.chunk) > most; ++d) {
    grid.chunk[d] = 1;
    const std::uint64_t rows = std::max<std::uint64_t>(1, most / volume(grid.chunk));
    // Of about equal size, so that the last one is not mostly empty.
    grid.chunk[d] = div_ceil(shape[d], div_ceil(shape[d], std::min(rows, shape[d])));
  }
  return grid;
}

std::uint64_t chunk_tree_bytes(const ChunkGrid& grid) {
  std::uint64_t nodes = 0;
  for (const std::uint64_t level : levels_of(grid)) nodes += level;
  return nodes * node_bytes(grid);
}

ByteVector chunk_tree(const ChunkGrid& grid, std::uint64_t at, std::span<const FileRange> places) {
  EBB_CHECK(places.size() == grid.count());
  return TreeWriter(grid, at, places).write();
}

}  // namespace ebb::formats::hdf5
