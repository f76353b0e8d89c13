#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/layout/layout.h"
#include "tests/support/cpu_time.h"

namespace ebb::formats {
namespace {

using Random = std::mt19937_64;

Chunk chunk(Box box, std::uint32_t rank) {
  Chunk out;
  out.box = std::move(box);
  out.file = rank;
  out.holder = Rank{rank};
  return out;
}

Catalog files(std::uint32_t count) {
  Catalog catalog;
  for (std::uint32_t r = 0; r < count; ++r)
    catalog.files.push_back({"rank" + std::to_string(r) + ".bin", 0, Rank{r}});
  return catalog;
}

TensorEntry tensor(Shape shape, std::vector<Chunk> chunks) {
  TensorEntry entry;
  entry.key = "model.w";
  entry.shape = std::move(shape);
  entry.chunks = std::move(chunks);
  return entry;
}

std::string verdict(const TensorEntry& entry) {
  const Result<> proof = prove_coverage(entry, files(4));
  return proof ? "covered" : proof.error().message;
}

TEST(Coverage, NamesTheRowsOfAHole) {
  const auto entry =
      tensor({1024, 64}, {chunk({{0, 0}, {512, 64}}, 0), chunk({{640, 0}, {384, 64}}, 1)});
  const Result<> proof = prove_coverage(entry, files(2));
  ASSERT_FALSE(proof);
  EXPECT_EQ(proof.error().code, Code::incomplete);
  EXPECT_EQ(proof.error().message, "model.w: rows 512-639 are in no shard");
}

TEST(Coverage, NamesTheRowsAndRanksOfAnOverlap) {
  const auto entry = tensor({8, 3}, {chunk({{0, 0}, {5, 3}}, 0), chunk({{3, 0}, {5, 3}}, 1)});
  const Result<> proof = prove_coverage(entry, files(2));
  ASSERT_FALSE(proof);
  EXPECT_EQ(proof.error().code, Code::corrupt);
  EXPECT_EQ(proof.error().message,
            "model.w: rows 3-4 are in shards of ranks 0 and 1 (rank0.bin:0 and rank1.bin:0)");
}

TEST(Coverage, SeesAHoleAndAnOverlapOfTheSameVolume) {
  // Uneven rows saved with ceil(rows / world) * rank as offset: the volume adds up, the rows do
  // not.
  EXPECT_EQ(verdict(tensor({8, 2}, {chunk({{0, 0}, {5, 2}}, 0), chunk({{4, 0}, {3, 2}}, 1)})),
            "model.w: row 4 is in shards of ranks 0 and 1 (rank0.bin:0 and rank1.bin:0)");
  EXPECT_EQ(verdict(tensor({8, 2}, {chunk({{0, 0}, {3, 2}}, 0), chunk({{4, 0}, {4, 2}}, 1),
                                    chunk({{6, 0}, {1, 2}}, 2)})),
            "model.w: row 3 is in no shard");
}

TEST(Coverage, AcceptsUnevenRowsWhoseOffsetsAreSumsOfLowerRanks) {
  EXPECT_EQ(verdict(tensor({8, 2}, {chunk({{0, 0}, {5, 2}}, 0), chunk({{5, 0}, {0, 2}}, 1),
                                    chunk({{5, 0}, {3, 2}}, 2)})),
            "covered");
  EXPECT_EQ(verdict(tensor({9, 2}, {chunk({{0, 0}, {1, 2}}, 0), chunk({{1, 0}, {6, 2}}, 1),
                                    chunk({{7, 0}, {2, 2}}, 2)})),
            "covered");
}

TEST(Coverage, NamesTheElementsWhenAHoleIsNarrowerThanItsRows) {
  EXPECT_EQ(verdict(tensor({4, 8}, {chunk({{0, 0}, {4, 4}}, 0), chunk({{0, 4}, {1, 4}}, 1),
                                    chunk({{3, 4}, {1, 4}}, 1)})),
            "model.w: rows 1-2 (elements [1:3, 4:8]) are in no shard");
}

TEST(Coverage, RefusesAnOwnerThatDeclaresRowsItDoesNotHave) {
  EXPECT_EQ(verdict(tensor({8, 2}, {chunk({{0, 0}, {8, 2}}, 0), chunk({{8, 0}, {8, 2}}, 1)})),
            "model.w: shard [8:16, 0:2] of rank 1 (rank1.bin:0) lies outside the tensor's shape "
            "[8, 2]");
  EXPECT_EQ(verdict(tensor({8, 2}, {chunk({{0}, {0}}, 1)})),
            "model.w: shard [0:0] of rank 1 (rank1.bin:0) lies outside the tensor's shape [8, 2]");
}

TEST(Coverage, ScalarsAndEmptyTensorsAreTensorsToo) {
  EXPECT_EQ(verdict(tensor({}, {chunk(Box{}, 0)})), "covered");
  EXPECT_EQ(verdict(tensor({}, {})), "model.w: its only element is in no shard");
  EXPECT_EQ(verdict(tensor({}, {chunk(Box{}, 0), chunk(Box{}, 1)})),
            "model.w: its only element is in shards of ranks 0 and 1 (rank0.bin:0 and "
            "rank1.bin:0)");
  EXPECT_EQ(verdict(tensor({0, 4}, {})), "covered");
  EXPECT_EQ(verdict(tensor({0, 4}, {chunk({{0, 0}, {0, 4}}, 0), chunk({{0, 0}, {0, 4}}, 1)})),
            "covered");
  EXPECT_EQ(verdict(tensor({3}, {})), "model.w: rows 0-2 are in no shard");
}

TEST(Coverage, AcceptsATilingThatNoStraightCutSeparates) {
  // A pinwheel: four 1 x 2 bricks around a middle element.
  EXPECT_EQ(verdict(tensor({3, 3}, {chunk({{0, 0}, {1, 2}}, 0), chunk({{0, 2}, {2, 1}}, 1),
                                    chunk({{2, 1}, {1, 2}}, 2), chunk({{1, 0}, {2, 1}}, 3),
                                    chunk({{1, 1}, {1, 1}}, 0)})),
            "covered");
}

TEST(Coverage, StatesItsLimits) {
  const std::uint64_t wide = std::uint64_t{1} << 40;
  EXPECT_EQ(verdict(tensor({wide, wide}, {})),
            "model.w: shape [1099511627776, 1099511627776] has more than 2^64 elements");
  // Each chunk halves another dimension, so all of them take part.
  std::vector<Chunk> chunks;
  const Shape shape(25, 2);
  for (std::size_t d = 0; d < 25; ++d) {
    Box box = whole(shape);
    box.extent[d] = 1;
    chunks.push_back(chunk(box, 0));
  }
  EXPECT_EQ(verdict(tensor(shape, chunks)),
            "model.w: 25 shards cut in 25 dimensions; the limits are 8 dimensions and "
            "2^28 corners");
}

// Counts how often every element is stored.
std::vector<int> counts(const TensorEntry& entry) {
  const Box all = whole(entry.shape);
  std::vector<int> stored(volume(entry.shape), 0);
  for (std::size_t e = 0; e < stored.size(); ++e) {
    const Box element = boxes_of(entry.shape, {e, 1}).at(0);
    for (const Chunk& piece : entry.chunks)
      if (intersect(element, piece.box)) ++stored[e];
  }
  return stored;
}

// A random tiling by straight cuts, then perhaps a piece lost, doubled or moved.
TensorEntry random_tensor(Random& random) {
  Shape shape(random() % 5);
  for (std::uint64_t& size : shape) size = std::min<std::uint64_t>(random() % 8, 4);
  TensorEntry entry = tensor(shape, {chunk(whole(shape), 0)});
  for (int cut = 0; cut < 6 && !shape.empty(); ++cut) {
    const std::size_t victim = random() % entry.chunks.size();
    Box& low = entry.chunks[victim].box;
    const std::size_t d = random() % shape.size();
    Box high = low;
    const std::uint64_t at = random() % (low.extent[d] + 1);
    low.extent[d] = at;
    high.offset[d] += at;
    high.extent[d] -= at;
    entry.chunks.push_back(chunk(high, static_cast<std::uint32_t>(cut % 4)));
  }
  std::ranges::shuffle(entry.chunks, random);
  switch (random() % 4) {
    case 0:
      entry.chunks.pop_back();
      break;
    case 1:
      entry.chunks.push_back(entry.chunks.front());
      break;
    case 2:
      for (std::size_t d = 0; d < shape.size(); ++d)
        if (Box& box = entry.chunks[0].box; box.offset[d] > 0) --box.offset[d];
      break;
    default:
      break;
  }
  return entry;
}

TEST(Coverage, AgreesWithCountingEveryElement) {
  Random random(31);
  int refused = 0;
  for (int round = 0; round < 4000; ++round) {
    const TensorEntry entry = random_tensor(random);
    const std::vector<int> stored = counts(entry);
    const auto wrong = std::ranges::find_if(stored, [](int n) { return n != 1; });
    const Result<> proof = prove_coverage(entry, files(4));
    ASSERT_EQ(proof.has_value(), wrong == stored.end()) << to_string(entry.shape);
    if (proof) continue;
    ++refused;
    // The first wrong element decides what the message says, and its row is named.
    EXPECT_EQ(proof.error().code, *wrong == 0 ? Code::incomplete : Code::corrupt);
    if (entry.shape.empty()) continue;
    const Box element =
        boxes_of(entry.shape, {static_cast<std::uint64_t>(wrong - stored.begin()), 1}).at(0);
    if (*wrong == 0) {
      const std::string row = std::to_string(element.offset[0]);
      EXPECT_TRUE(proof.error().message.starts_with("model.w: row " + row + " ") ||
                  proof.error().message.starts_with("model.w: rows " + row + "-"))
          << proof.error().message;
    }
  }
  EXPECT_GT(refused, 500);  // both answers are really tried
}

TEST(Coverage, EveryPolicyStoresEveryElementOnce) {
  const std::vector<Shape> shapes = {{13, 7}, {2, 3, 5, 2}, {5}, {1, 9}, {}, {0, 3}};
  for (const Policy policy :
       {Policy::zero12, Policy::zero12_boundary, Policy::zero3, Policy::rows}) {
    const auto layout = Layout::make({.policy = policy, .mesh = {5, 1}, .align_elems = 4}, shapes);
    ASSERT_TRUE(layout);
    for (std::size_t t = 0; t < shapes.size(); ++t) {
      TensorEntry entry = tensor(shapes[t], {});
      for (std::uint32_t r = 0; r < 5; ++r)
        for (const Piece& piece : layout->pieces(t, Rank{r}))
          entry.chunks.push_back(chunk(piece.box, r));
      const Result<> proof = prove_coverage(entry, files(5));
      EXPECT_TRUE(proof) << name_of(policy) << ": " << proof.error().message;
    }
  }
}

TEST(Coverage, OfTheCatalogStopsAtTheFirstTensorThatFails) {
  Catalog catalog = files(1);
  catalog.tensors.push_back(tensor({4}, {chunk({{0}, {4}}, 0)}));
  EXPECT_TRUE(prove_coverage(catalog));
  catalog.tensors.push_back(tensor({4}, {chunk({{0}, {3}}, 0)}));
  catalog.tensors[1].key.reset();
  catalog.tensors[1].name = "blk.0.up";
  catalog.tensors[1].state = "exp_avg";
  const Result<> proof = prove_coverage(catalog);
  ASSERT_FALSE(proof);
  EXPECT_EQ(proof.error().message, "blk.0.up (exp_avg): row 3 is in no shard");
}

double seconds_to_prove(std::uint64_t side) {
  TensorEntry entry = tensor({side * 4, side * 4}, {});
  for (std::uint64_t row = 0; row < side; ++row)
    for (std::uint64_t column = 0; column < side; ++column)
      entry.chunks.push_back(chunk({{row * 4, column * 4}, {4, 4}}, 0));
  std::ranges::shuffle(entry.chunks, Random(7));
  return test_support::least_cpu_seconds(3, [&] { EXPECT_EQ(verdict(entry), "covered"); });
}

TEST(Coverage, GrowsNearlyLinearlyWithTheNumberOfShards) {
  // 9 times the shards of a grid: an O(n^2) proof would take 81 times as long.
  const double small = seconds_to_prove(200), large = seconds_to_prove(600);
  RecordProperty("seconds_for_360000_shards", std::to_string(large));
  EXPECT_LT(large, 40 * small);
}

}  // namespace
}  // namespace ebb::formats
