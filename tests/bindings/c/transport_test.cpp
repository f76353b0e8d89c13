// Ranks whose messages the caller carries: here through memory that threads share.
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <latch>
#include <map>
#include <mutex>
#include <thread>

#include "tests/bindings/c/small_model.h"
#include "tests/bindings/c/trained_in_cpp.h"
#include "tests/support/program.h"

namespace ebb::c::transport_tests {
namespace {

constexpr std::uint32_t kWorld = 3;

struct Message {
  std::uint32_t from = 0;
  std::string bytes;
};

// What all ranks share.
struct Post {
  std::mutex mutex;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::deque<Message>> boxes;  // by to, tag
  std::uint64_t largest = 0;
};

struct Carrier {
  Post& post;
  std::uint32_t rank = 0;
  std::uint64_t sends_left = ~std::uint64_t{0};
  int closed = 0;

  static Carrier& of(void* self) { return *static_cast<Carrier*>(self); }
  static ebb_status send(void* self, std::uint32_t to, std::uint32_t tag, const void* message,
                         std::uint64_t bytes) {
    Carrier& mine = of(self);
    const std::lock_guard lock(mine.post.mutex);
    if (mine.sends_left == 0) return EBB_IO;
    --mine.sends_left;
    mine.post.largest = std::max(mine.post.largest, bytes);
    mine.post.boxes[{to, tag}].push_back(
        {mine.rank, std::string(static_cast<const char*>(message), bytes)});
    return EBB_DONE;
  }
  static ebb_status unsent(void*, std::uint32_t, std::uint64_t* counts) {
    std::fill_n(counts, kWorld, 0);
    return EBB_DONE;
  }
  static ebb_status receive(void* self, std::uint32_t tag, std::uint32_t* from, void* into,
                            std::uint64_t* bytes) {
    Carrier& mine = of(self);
    const std::lock_guard lock(mine.post.mutex);
    *from = kWorld;
    auto& box = mine.post.boxes[{mine.rank, tag}];
    if (box.empty()) return EBB_DONE;
    const Message& next = box.front();
    *from = next.from;
    const std::uint64_t room = std::exchange(*bytes, next.bytes.size());
    if (room < next.bytes.size()) return EBB_DONE;
    std::memcpy(into, next.bytes.data(), next.bytes.size());
    box.pop_front();
    return EBB_DONE;
  }
  static void close(void* self) { ++of(self).closed; }

  ebb_transport transport() {
    return {sizeof(ebb_transport), this, rank, kWorld, 64, send, unsent, receive, close};
  }
};

// On each rank, connected; its carrier is closed once behind it.
template <typename Body>
void on_ranks(Post& post, const Body& body) {
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < kWorld; ++rank)
    threads.emplace_back([&, rank] {
      Carrier carrier{post, rank};
      const ebb_transport transport = carrier.transport();
      ebb_ranks* ranks = nullptr;
      ASSERT_EQ(ebb_ranks_transport(&transport, 60'000, &ranks), EBB_DONE) << last_message();
      body(carrier, ranks);
      EXPECT_EQ(ebb_ranks_close(ranks), EBB_DONE);
      EXPECT_EQ(carrier.closed, 1);
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(CTransport, CarriesATrainingWithTheBitsOfOneRank) {
  const test_support::ScratchDirectory scratch;
  const auto alone = trained_in_cpp(scratch / "one", 3);
  Post post;
  on_ranks(post, [&](Carrier&, ebb_ranks* ranks) {
    SmallModel model(kWorld);
    ebb_engine* mine = nullptr;
    ASSERT_EQ(model.open(ranks, scratch / "three", &mine), EBB_DONE) << last_message();
    for (std::uint64_t step = 0; step < 3; ++step)
      ASSERT_EQ(model.step(mine, step), EBB_DONE) << last_message();
    EXPECT_EQ(model.weights, alone);
    EXPECT_EQ(ebb_engine_close(mine), EBB_DONE) << last_message();
  });
  EXPECT_GT(post.largest, 1000u) << "more than room is offered for at first";
}

TEST(CTransport, AnErrorOfItsOwnEndsTheRanks) {
  Post post;
  std::latch seen(1);
  on_ranks(post, [&](Carrier& carrier, ebb_ranks* ranks) {
    std::int64_t smallest = 0;
    ASSERT_EQ(ebb_ranks_agree(ranks, 5, &smallest), EBB_DONE) << last_message();
    if (carrier.rank != 1) return seen.wait();
    {
      const std::lock_guard lock(post.mutex);
      carrier.sends_left = 0;
    }
    EXPECT_EQ(ebb_ranks_agree(ranks, 5, &smallest), EBB_PEER);
    EXPECT_NE(last_message().find("send answered -2"), std::string::npos) << last_message();
    seen.count_down();
  });
}

TEST(CTransport, WhatItLacksIsSaid) {
  Post post;
  Carrier carrier{post};
  ebb_transport transport = carrier.transport();
  ebb_ranks* ranks = nullptr;
  transport.receive = nullptr;
  EXPECT_EQ(ebb_ranks_transport(&transport, 0, &ranks), EBB_USAGE);
  EXPECT_EQ(ebb_ranks_transport(nullptr, 0, &ranks), EBB_USAGE);
  EXPECT_EQ(carrier.closed, 0);
  transport = carrier.transport();
  transport.rank = kWorld;
  EXPECT_EQ(ebb_ranks_transport(&transport, 0, &ranks), EBB_USAGE);
  EXPECT_EQ(carrier.closed, 1);
}

}  // namespace
}  // namespace ebb::c::transport_tests
