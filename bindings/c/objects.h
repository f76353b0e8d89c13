// What handles lead to.
#pragma once

#include <atomic>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings/c/handles.h"
#include "bindings/c/open_device.h"
#include "ebb/libmuon/comm/socket_ranks.h"
#include "ebb/libmuon/step/engine.h"
#include "ebb/libmuon/step/pinned_checkpoint.h"
#include "ebb/libswap/queue/io_queue.h"
#include "ebb/libswap/space/swap_space.h"
#include "ebb/libswap/sys/when_memory.h"
#include "ebb/libswap/trace.h"

namespace ebb::c {

struct ListenerObject {
  libmuon::SocketListener listener;
};

struct RanksObject {
  explicit RanksObject(std::unique_ptr<libmuon::Communicator> made) : ranks(std::move(made)) {}

  std::unique_ptr<libmuon::Communicator> ranks;
  std::atomic<bool> in_call = false;
};

// A call that no other thread's may be beside: a collective one of the same ranks, whichever engine
// it is of; or one of the same engine. Code::state while another thread is inside of one.
class OnlyCall {
 public:
  // `what`: what both are of; a literal.
  static Result<OnlyCall> enter(std::atomic<bool>& in_call, std::string_view what);
  OnlyCall(OnlyCall&& other) noexcept : in_call_(std::exchange(other.in_call_, nullptr)) {}
  OnlyCall& operator=(OnlyCall&&) = delete;
  ~OnlyCall() {
    if (in_call_ != nullptr) *in_call_ = false;
  }

 private:
  explicit OnlyCall(std::atomic<bool>& in_call) : in_call_(&in_call) {}
  std::atomic<bool>* in_call_;
};
inline Result<OnlyCall> collective_call(RanksObject& ranks) {
  return OnlyCall::enter(ranks.in_call, "ranks, a collective one");
}

// An exception that passes by leaves these ranks in the middle of something, and perhaps an engine:
// both are over, and no other rank is to wait for this one.
class Passage {
 public:
  // `broken`: the engine's, or null.
  explicit Passage(RanksObject& ranks, std::atomic<bool>* broken = nullptr)
      : ranks_(ranks), broken_(broken) {}
  ~Passage() {
    if (std::uncaught_exceptions() <= before_) return;
    if (broken_ != nullptr) *broken_ = true;
    libswap::when_memory([this] { ranks_.ranks->abort(); });
  }
  Passage(const Passage&) = delete;
  Passage& operator=(const Passage&) = delete;

 private:
  RanksObject& ranks_;
  std::atomic<bool>* const broken_;
  const int before_ = std::uncaught_exceptions();
};

// Destroyed from the last to the first.
struct EngineObject {
  static constexpr std::string_view kWhat = "engine";

  std::shared_ptr<OpenDevice> device;  // null: the host computes
  std::shared_ptr<RanksObject> ranks;
  libswap::Trace trace{1u << 18, libswap::Trace::Begins::with_start};
  std::shared_ptr<libswap::IoQueue> io;
  std::vector<std::unique_ptr<libswap::SwapDirectory>> directories;  // the last is the state's
  std::unique_ptr<libmuon::Engine> engine;
  std::vector<std::string> names;  // of parameters
  std::uint32_t groups = 0;
  std::atomic<bool> in_call = false;
  std::atomic<bool> broken = false;  // an exception left one of its calls, who knows where
};

// Destroyed from the last to the first.
struct SwapObject {
  static constexpr std::string_view kWhat = "swap space";

  std::shared_ptr<RanksObject> ranks;
  std::unique_ptr<libswap::IoQueue> io;
  std::unique_ptr<libswap::SwapDirectory> directory;
  std::unique_ptr<libswap::SwapSpace> space;
  std::vector<std::uint32_t> parts;  // how many each buffer has
  std::map<std::uint64_t, libswap::SwapSpace::Lease> leases;
  std::uint64_t leased = 0;  // how often
  std::atomic<bool> in_call = false;
  std::atomic<bool> broken = false;  // as an engine's
};

struct PinnedObject {
  std::shared_ptr<libswap::IoQueue> io;  // of the store that the generation is pinned in
  libmuon::PinnedCheckpoint pinned;
};

// Constant once it is open.
struct CheckpointObject {
  std::shared_ptr<const Checkpoint> source;  // whose weights it is; else null
  std::shared_ptr<const Checkpoint> checkpoint;
  std::vector<std::string> changes;  // how weights came to be, for people
};

// Whatever reads and writes files best on this machine.
Result<std::unique_ptr<libswap::IoQueue>> open_io();

Handles<ListenerObject>& listeners();
Handles<RanksObject>& ranks_handles();
Handles<EngineObject>& engines();
Handles<SwapObject>& swaps();
Handles<PinnedObject>& pinned_ones();
Handles<CheckpointObject>& checkpoints();

}  // namespace ebb::c
