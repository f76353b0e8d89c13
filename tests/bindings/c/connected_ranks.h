// Two ranks from ebb.h that are threads of this process.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <thread>
#include <vector>

#include "tests/bindings/c/small_model.h"

namespace ebb::c {

inline constexpr std::uint32_t kWorld = 2;

// Runs on each rank, connected; the ranks are closed when it returns.
template <typename Body>
void on_ranks(const Body& body) {
  std::array<ebb_listener*, kWorld> listeners{};
  std::array<char*, kWorld> addresses{};
  for (std::uint32_t rank = 0; rank < kWorld; ++rank)
    ASSERT_EQ(ebb_listener_open(nullptr, &listeners[rank], &addresses[rank]), EBB_DONE);
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < kWorld; ++rank)
    threads.emplace_back([&, rank] {
      ebb_ranks* ranks = nullptr;
      ASSERT_EQ(ebb_ranks_connect(listeners[rank], rank, kWorld, addresses.data(), 60'000, &ranks),
                EBB_DONE)
          << last_message();
      body(rank, ranks);
      EXPECT_EQ(ebb_ranks_close(ranks), EBB_DONE) << last_message();
    });
  for (std::thread& thread : threads) thread.join();
  for (char* const address : addresses) ebb_free(address);
}

}  // namespace ebb::c
