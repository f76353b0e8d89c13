// What handles lead to.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/c/handles.h"
#include "ebb/libmuon/comm/socket_ranks.h"
#include "ebb/libmuon/step/engine.h"
#include "ebb/libswap/queue/io_queue.h"

namespace ebb::c {

struct ListenerObject {
  libmuon::SocketListener listener;
};

struct RanksObject {
  explicit RanksObject(std::unique_ptr<libmuon::Communicator> made) : ranks(std::move(made)) {}

  std::unique_ptr<libmuon::Communicator> ranks;
  std::atomic<bool> in_call = false;
};

// A collective call: one at a time for the same ranks, whichever engine it is of. Code::state where
// another thread is inside of one.
class CollectiveCall {
 public:
  static Result<CollectiveCall> enter(RanksObject& ranks);
  CollectiveCall(CollectiveCall&& other) noexcept : ranks_(std::exchange(other.ranks_, nullptr)) {}
  CollectiveCall& operator=(CollectiveCall&&) = delete;
  ~CollectiveCall() {
    if (ranks_ != nullptr) ranks_->in_call = false;
  }

 private:
  explicit CollectiveCall(RanksObject& ranks) : ranks_(&ranks) {}
  RanksObject* ranks_;
};

// Destroyed from the last to the first.
struct EngineObject {
  std::shared_ptr<RanksObject> ranks;
  std::unique_ptr<libswap::IoQueue> io;
  std::vector<std::unique_ptr<libswap::SwapDirectory>> directories;  // the last is the state's
  std::unique_ptr<libmuon::Engine> engine;
  std::vector<std::string> names;  // of parameters
  std::uint32_t groups = 0;
  std::atomic<bool> broken = false;  // an exception left one of its calls, who knows where
};

Handles<ListenerObject>& listeners();
Handles<RanksObject>& ranks_handles();
Handles<EngineObject>& engines();

}  // namespace ebb::c
