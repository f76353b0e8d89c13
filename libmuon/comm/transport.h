// Transport: moves messages between the ranks of a world. All that ranks over messages
// (message_ranks.h) need of MPI, or of whatever else connects processes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ebb/formats/core/bytes.h"
#include "ebb/formats/core/result.h"
#include "ebb/formats/core/units.h"
#include "ebb/libmuon/comm/byte_lane.h"

namespace ebb::libmuon {

// No message is longer, however much is to travel: a transport counts in an int what it likes.
inline constexpr std::size_t kMostMessage = formats::MiB;

class Transport {
 public:
  struct Arrived {
    Rank from{};
    ByteVector message;
  };

  // Messages that have not gone may be lost.
  virtual ~Transport() = default;
  virtual Rank rank() const = 0;
  virtual std::uint32_t world() const = 0;
  // Tags below this number can be used.
  virtual std::uint32_t tags() const = 0;

  // Calls come from any thread and wait for no other rank; an error is final. What one rank sends
  // another with one tag arrives in that order, whole, each once.
  // The transport owns the message until it has gone.
  virtual Result<> send(Rank to, std::uint32_t tag, ByteVector message) = 0;
  // To whom messages with this tag have not gone yet: one entry a message. What has gone arrives
  // without further calls here.
  virtual Result<std::vector<Rank>> unsent(std::uint32_t tag) = 0;
  // The next message with this tag that has come, of any rank.
  virtual Result<std::optional<Arrived>> receive(std::uint32_t tag) = 0;

  // By peer: memory of the caller's that goes there, or is filled from there.
  using Lanes = std::vector<ByteLane>;
  // Moves what goes without waiting of a round, whose sizes both ends of a lane know; whether any
  // did: where none does it may wait a millisecond. Until it has gone, and what is to come has
  // come, it is called again, with this tag by one thread at a time; between calls nobody touches
  // the caller's memory. Here as messages, a few of which are on their way.
  virtual Result<bool> move(std::uint32_t tag, Lanes& out, Lanes& in);
  // Why nothing follows from this rank what receive() and move() find after this call; nullopt
  // while something may, or where the transport cannot know.
  virtual std::optional<std::string> gone(Rank peer);
};

}  // namespace ebb::libmuon
