#include "ebb/formats/layout/shape.h"

#include <gtest/gtest.h>

#include <random>
#include <utility>
#include <vector>

namespace ebb {

namespace {

using Numbers = std::vector<std::uint64_t>;

Numbers numbers_in(const Shape& shape) { return {shape.begin(), shape.end()}; }

TEST(Shape, IsWhatAVectorIsOnBothSidesOfTheRoomInTheObject) {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    Shape shape;
    Numbers model;
    for (int change = 0; change < 20; ++change) {
      const std::uint64_t value = random() % 3;
      const std::size_t at = model.empty() ? 0 : random() % model.size();
      switch (random() % 7) {
        case 0:
          shape.resize(random() % 9, value);
          model.resize(shape.size(), value);
          break;
        case 1:
          shape.insert(shape.begin() + at, value);
          model.insert(model.begin() + static_cast<std::ptrdiff_t>(at), value);
          break;
        case 2: {
          const Numbers more = {7, 8, 9};
          shape.insert(shape.end(), more.begin(), more.end());
          model.insert(model.end(), more.begin(), more.end());
          break;
        }
        case 3:
          if (model.empty()) break;
          shape.erase(shape.begin() + at);
          model.erase(model.begin() + static_cast<std::ptrdiff_t>(at));
          break;
        case 4:
          shape.assign(at, value);
          model.assign(at, value);
          break;
        default:
          shape.push_back(value);
          model.push_back(value);
      }
      ASSERT_EQ(numbers_in(shape), model);
    }
  }
}

TEST(Shape, IsCopiedAndMovedWhereverItsNumbersLie) {
  for (std::size_t count = 0; count < 10; ++count) {
    const Shape shape(count, 3);
    const Numbers all(count, 3);
    Shape copy = shape;
    copy.push_back(4);
    EXPECT_EQ(numbers_in(shape), all);
    Shape moved = std::move(copy);
    moved.pop_back();
    EXPECT_EQ(moved, shape);
    Shape other = {1, 2};
    other = moved;
    EXPECT_EQ(other, shape);
    const Shape& same = other;
    other = same;
    EXPECT_EQ(other, shape);
    other = Shape{1, 2, 3, 4, 5};
    EXPECT_EQ(numbers_in(other), (Numbers{1, 2, 3, 4, 5}));
    other = Shape(count, 3);
    EXPECT_EQ(other, shape);
  }
}

TEST(Shape, OrdersAsAVectorDoes) {
  EXPECT_LT((Shape{1, 2}), (Shape{1, 2, 0}));
  EXPECT_LT((Shape{1, 9, 9}), (Shape{2}));
  EXPECT_EQ((Shape{5, 4, 3, 2, 1}) <=> (Shape{5, 4, 3, 2, 1}), std::strong_ordering::equal);
  EXPECT_NE((Shape{1}), (Shape{1, 1}));
}

}  // namespace

}  // namespace ebb
