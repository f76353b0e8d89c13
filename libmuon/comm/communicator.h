// Communicator: the three verbs a step needs, agree, sum and exchange. Implementations: ranks as
// threads (here), MPI (header adapter), NCCL (plugin). Calls come from one thread at a time, in the
// same order on all ranks. An error on one rank is an error on all: nobody is left waiting, not
// even for a rank that lives and never comes.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "ebb/formats/core/units.h"
#include "ebb/libswap/device/device.h"
#include "ebb/libswap/store/agreement.h"

namespace ebb::libmuon {

inline constexpr std::uint64_t kMostRoundBytes = 256 * formats::MiB;
// What ranks that are processes take of a rank's memory beside the caller's buffers, at most:
// messages on their way, memory that two of them share.
inline constexpr std::uint64_t kMostRanksBytes = 16 * formats::MiB;
// How long a rank may keep others waiting in a call.
inline constexpr std::chrono::milliseconds kPeerLimit = std::chrono::minutes(30);

// In the host's memory, or in that of a device which the communicator takes.
struct SendBuffer {
  Rank peer{};
  libswap::Buffer data;  // is not written
};
struct ReceiveBuffer {
  Rank peer{};
  libswap::Buffer data;
};

class Communicator : public libswap::Ranks {
 public:
  // The same on all ranks; zero: none. Counted only while somebody waits inside a call. When it is
  // over, every waiting and later call on every rank answers Code::peer and names who was silent.
  virtual std::chrono::milliseconds limit() const = 0;
  // Whether buffers may lie in this device's memory; in the host's they always may.
  virtual bool takes(const libswap::Device& device) const = 0;
  // One round of at most kMostRoundBytes sent, and received, a rank. Between a pair of ranks, sends
  // match receives in order and size (Code::layout names the pair otherwise). Buffers are used
  // behind `after`; the event passes when what is received is there and what was sent is free.
  virtual Result<libswap::Event> begin_exchange(std::span<const SendBuffer> sends,
                                                std::span<const ReceiveBuffer> receives,
                                                std::span<const libswap::Event> after) = 0;
  // The same to its end, of buffers that are ready.
  Result<> exchange(std::span<const SendBuffer> sends, std::span<const ReceiveBuffer> receives) {
    EBB_TRY_ASSIGN(const libswap::Event through, begin_exchange(sends, receives, {}));
    through.wait();
    return {};
  }
  // Collective. Another one of the same ranks, for another thread: a call on one does not wait for
  // a call on the other. A world that is over, because a rank gave up or was silent, is so in all
  // of them; a duplicate that is destroyed ends alone.
  virtual Result<std::unique_ptr<Communicator>> duplicate() = 0;
  // This rank gives up: every present and future call on every rank answers Code::peer.
  virtual void abort() = 0;

  // Meanwhile the ranks meet in every quarter of their limit, so that a disk may be as slow as it
  // likes. Returns only when this rank's work has ended.
  Result<> together(std::string_view doing, const std::function<Result<>()>& work) override;
  Result<> together_reading(
      std::string_view doing, const libswap::FilesApart& files,
      const std::function<Result<>(const libswap::ReadThere& there)>& work) override;
};

// `world` ranks in one process; element r is for the thread of rank r.
std::vector<std::unique_ptr<Communicator>> make_thread_ranks(
    std::uint32_t world, std::chrono::milliseconds limit = kPeerLimit);

}  // namespace ebb::libmuon
