// Communicators that count what an engine sends to whom.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>

#include "tests/libmuon/support/world.h"

namespace ebb::test {

// Who sent how many bytes to whom, of all ranks and their duplicates.
struct Sent {
  std::mutex mutex;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint64_t> bytes;

  std::uint64_t from(std::uint32_t rank) const {
    std::uint64_t total = 0;
    for (const auto& [pair, sent] : bytes) total += pair.first == rank ? sent : 0;
    return total;
  }
};

class Watched : public RanksBelow {
 public:
  Watched(std::unique_ptr<libmuon::Communicator> below, Sent& sent)
      : RanksBelow(std::move(below)), sent_(sent) {}

  Result<libswap::Event> begin_exchange(std::span<const libmuon::SendBuffer> sends,
                                        std::span<const libmuon::ReceiveBuffer> receives,
                                        std::span<const libswap::Event> after) override {
    {
      const std::lock_guard lock(sent_.mutex);
      for (const auto& send : sends)
        sent_.bytes[{index_of(rank()), index_of(send.peer)}] += send.data.size();
    }
    return RanksBelow::begin_exchange(sends, receives, after);
  }

 private:
  Sent& sent_;
};

// What an engine sends, it sends on a duplicate: that is watched.
class WatchedDuplicates : public RanksBelow {
 public:
  WatchedDuplicates(libmuon::Communicator& below, Sent& sent) : RanksBelow(below), sent_(sent) {}
  Result<std::unique_ptr<libmuon::Communicator>> duplicate() override {
    EBB_TRY_ASSIGN(auto below, RanksBelow::duplicate());
    return std::unique_ptr<libmuon::Communicator>(
        std::make_unique<Watched>(std::move(below), sent_));
  }

 private:
  Sent& sent_;
};

}  // namespace ebb::test
