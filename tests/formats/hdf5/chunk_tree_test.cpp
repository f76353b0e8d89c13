// The index of chunks finds each of them where it lies, however many levels it has.
#include "ebb/formats/hdf5/chunk_tree.h"

#include <gtest/gtest.h>

#include <map>

#include "ebb/formats/core/units.h"
#include "ebb/formats/hdf5/description.h"

namespace ebb {

namespace {

using formats::ByteReader;
using formats::hdf5::ChunkGrid;
using formats::hdf5::grid_of;

constexpr std::uint64_t kAt = 1000;

struct Found {
  FileRange place;
  std::uint32_t skipped = 0;
};

// Reads a tree as the specification has it, depth first.
class Reader {
 public:
  Reader(const ChunkGrid& grid, ByteView bytes) : grid_(grid), bytes_(bytes) {}
  const std::map<Shape, Found>& chunks() const { return chunks_; }

  void node(std::uint64_t at, int level) {
    ByteReader in(bytes_.subspan(at - kAt));
    ASSERT_EQ(formats::text_of(*in.take(4)), "TREE");
    EXPECT_EQ(*in.number<std::uint8_t>(), 1);
    const int found = *in.number<std::uint8_t>();
    if (level >= 0) {
      EXPECT_EQ(found, level);
    }
    const std::uint16_t used = *in.number<std::uint16_t>();
    EXPECT_GT(used, 0);
    EXPECT_LE(used, 64);
    const std::uint64_t left = *in.number<std::uint64_t>();
    EXPECT_EQ(left,
              last_of_level_.contains(found) ? last_of_level_[found] : formats::hdf5::kNowhere);
    last_of_level_[found] = at;
    in.number<std::uint64_t>();
    Key before = key(in);
    for (std::uint16_t i = 0; i < used; ++i) {
      const std::uint64_t child = *in.number<std::uint64_t>();
      const Key after = key(in);
      EXPECT_LT(before.offset, after.offset);
      if (found == 0) {
        EXPECT_TRUE(
            chunks_.emplace(before.offset, Found{{child, before.bytes}, before.skipped}).second);
      } else {
        node(child, found - 1);
      }
      before = after;
    }
  }

 private:
  struct Key {
    std::uint32_t bytes = 0;
    std::uint32_t skipped = 0;
    Shape offset;
  };
  Key key(ByteReader& in) const {
    Key key{*in.number<std::uint32_t>(), *in.number<std::uint32_t>(), {}};
    for (std::size_t d = 0; d < grid_.shape.size(); ++d) {
      key.offset.push_back(*in.number<std::uint64_t>());
      EXPECT_EQ(key.offset.back() % grid_.chunk[d], 0u);
    }
    EXPECT_EQ(*in.number<std::uint64_t>() % grid_.elem_bytes, 0u);
    return key;
  }

  const ChunkGrid& grid_;
  ByteView bytes_;
  std::map<int, std::uint64_t> last_of_level_;
  std::map<Shape, Found> chunks_;
};

TEST(Hdf5ChunkTree, FindsEveryChunkOnAnyNumberOfLevels) {
  for (const Shape& shape : {Shape{1}, Shape{64}, Shape{65}, Shape{64 * 64}, Shape{64 * 64 + 1},
                             Shape{100, 90}, Shape{7, 1, 300}}) {
    const ChunkGrid grid = grid_of(shape, 2, 2);  // a chunk an element
    std::vector<FileRange> places;
    for (std::uint64_t i = 0; i < grid.count(); ++i) places.push_back({50000 + 7 * i, 1 + i % 9});
    const ByteVector bytes = chunk_tree(grid, kAt, places);
    ASSERT_EQ(bytes.size(), chunk_tree_bytes(grid));
    Reader reader(grid, bytes);
    reader.node(kAt, -1);
    ASSERT_EQ(reader.chunks().size(), grid.count());
    for (std::uint64_t i = 0; i < grid.count(); ++i) {
      const Found& found = reader.chunks().at(grid.box(i).offset);
      EXPECT_EQ(found.place, places[i]);
      EXPECT_EQ(found.skipped, 0u);
    }
  }
}

TEST(Hdf5ChunkGrid, CoversTheDatasetInChunksThatBeginWithTheirElements) {
  for (const Shape& shape :
       {Shape{1}, Shape{1000}, Shape{10, 100}, Shape{3, 5, 70}, Shape{300, 2}, Shape{2, 3, 1, 50}})
    for (const std::uint64_t bytes : {4u, 60u, 400u, 100000u}) {
      const ChunkGrid grid = grid_of(shape, 4, bytes);
      EXPECT_LE(grid.chunk_bytes(), std::max<std::uint64_t>(bytes, 4));
      std::uint64_t elements = 0;
      for (std::uint64_t i = 0; i < grid.count(); ++i) {
        const Box box = grid.box(i);
        elements += formats::volume(box.extent);
        // They are a run of the chunk's own elements, from the first on.
        const auto run = formats::flat_range_of(grid.chunk, {Shape(shape.size()), box.extent});
        ASSERT_TRUE(run.has_value());
        EXPECT_EQ(run->first, 0u);
      }
      EXPECT_EQ(elements, formats::volume(shape));
      // No more than a row of each chunk is empty.
      EXPECT_LE(grid.count() * formats::volume(grid.chunk), 2 * elements);
    }
}

}  // namespace

}  // namespace ebb
