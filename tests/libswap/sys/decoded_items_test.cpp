#include "ebb/libswap/tree/caches.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <ctime>
#include <string>
#include <thread>
#include <vector>

namespace ebb {

namespace {

using libswap::DecodedItems;
using Item = DecodedItems::Item;

// Asks for items that are their own keys and counts how often one is made.
class Asking {
 public:
  explicit Asking(std::uint64_t limit) : items_(limit) {}

  std::string ask(const std::string& key, std::uint64_t bytes) {
    const Result<Item> item = items_.get(key, bytes, [&]() -> Result<Item> {
      ++made_;
      return Item(std::make_shared<const std::string>(key));
    });
    return item ? *static_cast<const std::string*>(item->get()) : item.error().message;
  }
  int made() const { return made_; }

 private:
  DecodedItems items_;
  std::atomic<int> made_ = 0;
};

TEST(DecodedItems, TheLatestThatFitTogetherAreKept) {
  Asking items(10);
  for (const char* key : {"a", "b", "a", "b"}) EXPECT_EQ(items.ask(key, 5), key);
  EXPECT_EQ(items.made(), 2);
  EXPECT_EQ(items.ask("c", 5), "c");  // a goes
  EXPECT_EQ(items.ask("b", 5), "b");
  EXPECT_EQ(items.made(), 3);
  EXPECT_EQ(items.ask("a", 5), "a");
  EXPECT_EQ(items.made(), 4);
}

TEST(DecodedItems, OneThatIsLargerIsKeptAlone) {
  Asking items(10);
  items.ask("small", 1);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(items.ask("large", 1000), "large");
  EXPECT_EQ(items.made(), 2);
  items.ask("small", 1);
  EXPECT_EQ(items.made(), 3);
}

TEST(DecodedItems, AnErrorIsTriedAgain) {
  DecodedItems items(10);
  int made = 0;
  const auto fail = [&]() -> Result<Item> {
    ++made;
    return Error{Code::io, "worn out"};
  };
  EXPECT_FALSE(items.get("a", 1, fail));
  EXPECT_FALSE(items.get("a", 1, fail));
  EXPECT_EQ(made, 2);
}

TEST(DecodedItems, ThreadsThatAskAtOnceHaveItMadeOnce) {
  Asking items(1000);
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&items] {
      for (int key = 0; key < 100; ++key)
        EXPECT_EQ(items.ask(std::to_string(key), 10), std::to_string(key));
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(items.made(), 100);
}

// Processor time of this thread for 2,000 answers where so many are kept.
double seconds_where_kept(int count) {
  Asking items(1u << 30);
  for (int key = 0; key < count; ++key) items.ask(std::to_string(key), 1);
  double best = 1e9;
  for (int round = 0; round < 5; ++round) {
    const std::clock_t before = std::clock();
    for (int key = 0; key < 2000; ++key)
      items.ask(std::to_string(static_cast<std::int64_t>(key) * 7919 % count), 1);
    best = std::min(best, static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC);
  }
  EXPECT_EQ(items.made(), count);
  return best;
}

// A checkpoint of many small items asks for each of them: a list that is searched took 500 times.
TEST(DecodedItems, AnswersCostAboutTheSameWhereManyAreKept) {
  EXPECT_LT(seconds_where_kept(50'000), 20 * seconds_where_kept(100));
}

}  // namespace

}  // namespace ebb
