// What the communicators of one process share that are ranks of one world over messages: the
// transport, the numbers of channels, and why the world, or a channel of it, is over.
//
// A channel is a communicator, the first or a duplicate; all ranks number them alike. Meetings of a
// channel are counted. Who ends a world or a channel says, channel by channel, from which meeting
// on it takes no part: what it did take part in is still decided on all ranks.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <vector>

#include "ebb/libmuon/comm/transport.h"
#include "ebb/libswap/sys/mutex.h"

namespace ebb::libmuon {

class MessageWorld {
 public:
  MessageWorld(std::unique_ptr<Transport> transport, std::chrono::milliseconds limit);
  // Tells the others, if the world was not over, that this rank is gone.
  ~MessageWorld();
  MessageWorld(const MessageWorld&) = delete;
  MessageWorld& operator=(const MessageWorld&) = delete;

  Rank rank() const { return transport_->rank(); }
  std::uint32_t size() const { return transport_->world(); }
  std::chrono::milliseconds limit() const { return limit_; }

  // The transport's. Where it fails, the world is over.
  Result<> send(Rank to, std::uint32_t tag, ByteVector message);
  Result<std::vector<Rank>> unsent(std::uint32_t tag);
  Result<std::optional<Transport::Arrived>> receive(std::uint32_t tag);
  Result<bool> move(std::uint32_t tag, Transport::Lanes& out, Transport::Lanes& in);
  std::optional<std::string> gone(Rank peer) { return transport_->gone(peer); }

  // The next channel's number.
  Result<std::uint32_t> open_channel();
  // No call on it follows. Those of other ranks answer `why`, where they need this one.
  void close_channel(std::uint32_t channel, const Error& why);

  // The first meeting that this rank has not taken its whole part in.
  void enter(std::uint32_t channel, std::uint64_t meeting);
  // Why that meeting cannot take place, as far as is known by now.
  Result<> still_on(std::uint32_t channel, std::uint64_t meeting);

  // For all ranks, in all channels; the first reason is the one that stays. Returns it.
  Error end(Error why);

 private:
  enum class Scope : std::uint8_t { world, channel };
  struct End {
    Rank from{};
    Scope scope = Scope::world;
    std::map<std::uint32_t, std::uint64_t> first = {};  // by channel: the first meeting without it
    Error why = {};
  };
  static ByteVector encode(const End& end);
  static End decode(Rank from, ByteView notice);

  template <typename T>
  Result<T> or_end(Result<T> answer);
  Result<> listen();
  void tell_all(const End& end) EBB_REQUIRES(mutex_);
  const End* over() const EBB_REQUIRES(mutex_);
  bool hits(const End& end, std::uint32_t channel, std::uint64_t meeting) const
      EBB_REQUIRES(mutex_);
  bool is_closed(std::uint32_t channel) const EBB_REQUIRES(mutex_);

  const std::unique_ptr<Transport> transport_;
  const std::chrono::milliseconds limit_;
  libswap::Mutex mutex_;
  std::uint32_t channels_ EBB_GUARDED_BY(mutex_) = 0;  // opened so far
  // By open channel: the first meeting that this rank has not taken its whole part in.
  std::map<std::uint32_t, std::uint64_t> next_ EBB_GUARDED_BY(mutex_);
  std::vector<End> ends_ EBB_GUARDED_BY(mutex_);
  std::optional<End> ended_by_ EBB_GUARDED_BY(mutex_);  // another rank's that a call here met
};

}  // namespace ebb::libmuon
