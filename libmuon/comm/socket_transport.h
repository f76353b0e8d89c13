// SocketTransport: the ranks' messages over one stream socket a pair, and the bytes of their rounds
// through a pipe beside it, a shared ring or a second socket: bytes that wait for their reader
// never hold a message up. No thread of its own; between calls the kernel keeps what has come.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "ebb/libmuon/comm/tagged_bytes.h"
#include "ebb/libmuon/comm/transport.h"
#include "ebb/libswap/sys/mutex.h"
#include "ebb/libswap/sys/ready_set.h"
#include "ebb/libswap/sys/ring_pipe.h"
#include "ebb/libswap/sys/socket_pipe.h"

namespace ebb::libmuon {

// What connects this rank with another one: one of the two carries the bytes.
struct SocketLink {
  std::unique_ptr<libswap::SocketPipe> words;
  std::unique_ptr<libswap::RingPipe> ring;
  std::unique_ptr<libswap::SocketPipe> bytes;
};

class SocketTransport : public Transport {
 public:
  // By rank; this one has none.
  static Result<std::unique_ptr<SocketTransport>> make(Rank rank, std::vector<SocketLink> links);
  // Waits a little until the others' machines have what was sent.
  ~SocketTransport() override;
  SocketTransport(const SocketTransport&) = delete;
  SocketTransport& operator=(const SocketTransport&) = delete;

  Rank rank() const override { return rank_; }
  std::uint32_t world() const override { return static_cast<std::uint32_t>(peers_.size()); }
  std::uint32_t tags() const override { return 1u << 31; }
  Result<> send(Rank to, std::uint32_t tag, ByteVector message) override;
  Result<std::vector<Rank>> unsent(std::uint32_t tag) override;
  Result<std::optional<Arrived>> receive(std::uint32_t tag) override;
  Result<bool> move(std::uint32_t tag, Lanes& out, Lanes& in) override;
  std::optional<std::string> gone(Rank peer) override;

 private:
  static constexpr std::size_t kReadAtOnce = 64 * formats::KiB;
  struct Outgoing {
    std::uint32_t tag = 0;
    ByteVector frame;
    std::size_t gone = 0;  // bytes of it
  };
  // Its queues are the mutex's.
  struct Peer {
    SocketLink link;
    std::deque<Outgoing> out;
    ByteVector in;  // of the message that is coming
    std::unique_ptr<TaggedBytes> bytes;
  };
  SocketTransport(Rank rank, libswap::ReadySet readable, std::vector<Peer> peers);
  Result<> flush(Peer& peer) EBB_REQUIRES(mutex_);
  Result<> listen() EBB_REQUIRES(mutex_);
  Result<> hear(Rank from) EBB_REQUIRES(mutex_);
  Result<> take_messages(Rank from) EBB_REQUIRES(mutex_);
  void wait_for_room(const Lanes& out, const Lanes& in) const;
  bool all_gone() EBB_REQUIRES(mutex_);

  const Rank rank_;
  std::vector<Peer> peers_;                            // by rank
  libswap::ReadySet readable_ EBB_GUARDED_BY(mutex_);  // of all peers' words
  libswap::Mutex mutex_;
  ByteVector scratch_ EBB_GUARDED_BY(mutex_);
  std::map<std::uint32_t, std::deque<Arrived>> arrived_ EBB_GUARDED_BY(mutex_);  // by tag
};

}  // namespace ebb::libmuon
