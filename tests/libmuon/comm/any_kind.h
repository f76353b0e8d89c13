// A test over ranks of some kind: Kind::run() starts them.
#pragma once

#include <gtest/gtest.h>

#include <functional>

#include "ebb/libmuon/comm/communicator.h"

namespace ebb::libmuon {

// Runs on each rank; the rank leaves when it returns.
using RankBody = std::function<void(Communicator&)>;

template <typename Kind>
class RanksOfAnyKind : public testing::Test {
 protected:
  static void on_ranks(std::uint32_t world, const RankBody& body,
                       std::chrono::milliseconds limit = kPeerLimit) {
    Kind::run(world, limit, body);
  }
};

}  // namespace ebb::libmuon
