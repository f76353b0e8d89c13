// The kinds of ranks that tests run the same bodies over.
#pragma once

#include <gtest/gtest.h>

#include <thread>

#include "ebb/libmuon/comm/message_ranks.h"
#include "tests/libmuon/comm/any_kind.h"
#include "tests/libmuon/support/mailboxes.h"
#include "tests/libmuon/support/processes.h"

namespace ebb::libmuon {

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

// Threads that know each other by messages alone.
struct MessageKind {
  static void run(std::uint32_t world, std::chrono::milliseconds limit, const RankBody& body) {
    auto mailboxes = test::make_mailboxes(world);
    std::vector<std::thread> threads;
    for (auto& mailbox : mailboxes)
      threads.emplace_back([&] {
        const auto rank = make_message_ranks(std::move(mailbox), limit);
        ASSERT_TRUE(rank) << rank.error().message;
        body(**rank);
      });
    for (std::thread& thread : threads) thread.join();
  }
};

// What the processes of the ranks exited with: 0 where the body found nothing wrong.
inline std::vector<int> answers_of(std::uint32_t world, std::chrono::milliseconds limit,
                                   const RankBody& body, const Reach& reach) {
  const auto in_rank = [&](std::unique_ptr<Communicator> comm) {
    body(*comm);
    comm.reset();
    return testing::Test::HasFailure() ? 1 : 0;
  };
  return test::run_processes(world, limit, in_rank, reach);
}

inline void run_ranks(std::uint32_t world, std::chrono::milliseconds limit, const RankBody& body,
                      const Reach& reach) {
  const auto answers = answers_of(world, limit, body, reach);
  for (std::uint32_t rank = 0; rank < world; ++rank)
    EXPECT_EQ(answers[rank], 0) << "rank " << rank << "; what failed stands above";
}

// Of one machine: words over local sockets, bytes through shared memory.
struct ProcessKind {
  static void run(std::uint32_t world, std::chrono::milliseconds limit, const RankBody& body) {
    run_ranks(world, limit, body, {});
  }
};

// As between machines: two connections a pair.
struct NetworkKind {
  static void run(std::uint32_t world, std::chrono::milliseconds limit, const RankBody& body) {
    run_ranks(world, limit, body, test::across_a_network());
  }
};

using Kinds = testing::Types<ThreadKind, ProcessKind, MessageKind, NetworkKind>;

}  // namespace ebb::libmuon
