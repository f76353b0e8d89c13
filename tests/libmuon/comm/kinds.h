// The kinds of ranks that tests run the same bodies over.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "ebb/libmuon/comm/communicator.h"
#include "tests/libmuon/support/socket_ranks.h"

namespace ebb::libmuon {

// Runs on each rank; the rank leaves when it returns.
using RankBody = std::function<void(Communicator&)>;

struct ThreadKind {
  static void run(std::uint32_t world, std::chrono::milliseconds limit, const RankBody& body) {
    auto ranks = make_thread_ranks(world, limit);
    std::vector<std::thread> threads;
    for (auto& rank : ranks)
      threads.emplace_back([&body, &rank] {
        body(*rank);
        rank.reset();
      });
    for (std::thread& thread : threads) thread.join();
  }
};

struct ProcessKind {
  static void run(std::uint32_t world, std::chrono::milliseconds limit, const RankBody& body) {
    const auto answers = test::run_processes(world, limit, [&](std::unique_ptr<Communicator> comm) {
      body(*comm);
      comm.reset();
      return testing::Test::HasFailure() ? 1 : 0;
    });
    for (std::uint32_t rank = 0; rank < world; ++rank)
      EXPECT_EQ(answers[rank], 0) << "rank " << rank << "; what failed stands above";
  }
};

template <typename Kind>
class RanksOfAnyKind : public testing::Test {
 protected:
  static void on_ranks(std::uint32_t world, const RankBody& body,
                       std::chrono::milliseconds limit = kPeerLimit) {
    Kind::run(world, limit, body);
  }
};

using Kinds = testing::Types<ThreadKind, ProcessKind>;

}  // namespace ebb::libmuon
