#include "ebb/libmuon/comm/socket_transport.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "ebb/libswap/sys/sockets.h"

namespace ebb::libmuon {
namespace {

using libswap::MutexLock;
using Clock = std::chrono::steady_clock;

// Before each message: its tag, and how many bytes follow.
struct Header {
  std::uint32_t tag = 0, bytes = 0;
};
constexpr std::chrono::seconds kFarewell{2};
constexpr int kLongestWait = 1;  // milliseconds

}  // namespace

Result<std::unique_ptr<SocketTransport>> SocketTransport::make(Rank rank,
                                                               std::vector<SocketLink> links) {
  EBB_TRY_ASSIGN(auto readable, libswap::ReadySet::make());
  std::vector<Peer> peers(links.size());
  for (std::uint32_t peer = 0; peer < peers.size(); ++peer) {
    SocketLink& link = peers[peer].link = std::move(links[peer]);
    if (Rank{peer} == rank) continue;
    libswap::BytePipe& bytes =
        link.ring != nullptr ? static_cast<libswap::BytePipe&>(*link.ring) : *link.bytes;
    peers[peer].bytes = std::make_unique<TaggedBytes>(bytes);
    EBB_TRY(readable.add(link.words->descriptor(), peer));
  }
  return std::unique_ptr<SocketTransport>(
      new SocketTransport(rank, std::move(readable), std::move(peers)));
}

SocketTransport::SocketTransport(Rank rank, libswap::ReadySet readable, std::vector<Peer> peers)
    : rank_(rank),
      peers_(std::move(peers)),
      readable_(std::move(readable)),
      scratch_(kReadAtOnce) {}

SocketTransport::~SocketTransport() {
  const auto end = Clock::now() + kFarewell;
  const MutexLock lock(mutex_);
  while (!all_gone() && Clock::now() < end)
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  for (const Peer& peer : peers_)
    for (const libswap::SocketPipe* const pipe : {peer.link.words.get(), peer.link.bytes.get()})
      if (pipe != nullptr)
        pipe->settle(std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()));
}

bool SocketTransport::all_gone() {
  return std::ranges::all_of(
      peers_, [this](Peer& peer) EBB_REQUIRES(mutex_) { return !flush(peer) || peer.out.empty(); });
}

Result<> SocketTransport::send(Rank to, std::uint32_t tag, ByteVector message) {
  const MutexLock lock(mutex_);
  const Header header{tag, static_cast<std::uint32_t>(message.size())};
  Outgoing outgoing{.tag = tag};
  formats::append_bytes(outgoing.frame, std::as_bytes(std::span(&header, 1)));
  formats::append_bytes(outgoing.frame, message);
  Peer& peer = peers_[index_of(to)];
  peer.out.push_back(std::move(outgoing));
  return flush(peer);
}

Result<> SocketTransport::flush(Peer& peer) {
  while (!peer.out.empty()) {
    Outgoing& first = peer.out.front();
    EBB_TRY_ASSIGN(const std::size_t count,
                   peer.link.words->write(ByteView(first.frame).subspan(first.gone)));
    first.gone += count;
    if (first.gone < first.frame.size()) break;
    peer.out.pop_front();
  }
  return {};
}

Result<std::vector<Rank>> SocketTransport::unsent(std::uint32_t tag) {
  const MutexLock lock(mutex_);
  std::vector<Rank> whose;
  for (std::uint32_t peer = 0; peer < peers_.size(); ++peer) {
    EBB_TRY(flush(peers_[peer]));
    whose.insert(
        whose.end(),
        static_cast<std::size_t>(std::ranges::count(peers_[peer].out, tag, &Outgoing::tag)),
        Rank{peer});
  }
  return whose;
}

Result<std::optional<Transport::Arrived>> SocketTransport::receive(std::uint32_t tag) {
  const MutexLock lock(mutex_);
  auto messages = arrived_.find(tag);
  if (messages == arrived_.end()) {
    EBB_TRY(listen());
    messages = arrived_.find(tag);
  }
  if (messages == arrived_.end()) return std::optional<Arrived>();
  std::optional<Arrived> first = std::move(messages->second.front());
  messages->second.pop_front();
  if (messages->second.empty()) arrived_.erase(messages);
  return first;
}

Result<> SocketTransport::listen() {
  for (const std::uint32_t peer : readable_.readable()) EBB_TRY(hear(Rank{peer}));
  return {};
}

// All that has come from that rank.
Result<> SocketTransport::hear(Rank from) {
  Peer& peer = peers_[index_of(from)];
  const libswap::SocketPipe& words = *peer.link.words;
  for (std::size_t count = kReadAtOnce; count == kReadAtOnce;) {
    EBB_TRY_ASSIGN(count, peer.link.words->read(scratch_));
    formats::append_bytes(peer.in, std::span(scratch_).first(count));
    EBB_TRY(take_messages(from));
    // What is over would be readable for ever.
    if (count == 0 && words.over()) readable_.remove(words.descriptor());
  }
  return {};
}

// Those that are there as a whole.
Result<> SocketTransport::take_messages(Rank from) {
  ByteVector& in = peers_[index_of(from)].in;
  std::size_t at = 0;
  while (in.size() - at >= sizeof(Header)) {
    Header header;
    std::memcpy(&header, in.data() + at, sizeof(header));
    if (header.bytes > kMostMessage)
      return Error{Code::corrupt, compose("rank {} sends a message of {} bytes, which none has",
                                          index_of(from), header.bytes)};
    const ByteView rest = ByteView(in).subspan(at + sizeof(header));
    if (rest.size() < header.bytes) break;
    const ByteView message = rest.first(header.bytes);
    arrived_[header.tag].push_back({from, {message.begin(), message.end()}});
    at += sizeof(header) + header.bytes;
  }
  in.erase(in.begin(), in.begin() + static_cast<std::ptrdiff_t>(at));
  return {};
}

// First to the next rank, last to the one before: each has one that sends to it.
Result<bool> SocketTransport::move(std::uint32_t tag, Lanes& out, Lanes& in) {
  bool moved = false;
  for (std::uint32_t distance = 1; distance < world(); ++distance) {
    const std::uint32_t to = (index_of(rank_) + distance) % world();
    const std::uint32_t from = (index_of(rank_) + world() - distance) % world();
    if (out[to].left() > 0) {
      EBB_TRY_ASSIGN(const bool went, peers_[to].bytes->write(tag, out[to]));
      moved = moved || went;
    }
    if (in[from].left() > 0) {
      EBB_TRY_ASSIGN(const bool came, peers_[from].bytes->read(tag, in[from]));
      moved = moved || came;
    }
  }
  if (!moved) wait_for_room(out, in);
  return moved;
}

// A little: the processor is better used by whoever takes or brings the bytes.
void SocketTransport::wait_for_room(const Lanes& out, const Lanes& in) const {
  std::vector<libswap::Awaited> awaited;
  for (std::size_t peer = 0; peer < peers_.size(); ++peer) {
    const libswap::SocketPipe* const bytes = peers_[peer].link.bytes.get();
    if (bytes == nullptr) continue;
    if (in[peer].left() > 0) awaited.push_back({bytes->descriptor()});
    if (out[peer].left() > 0) awaited.push_back({bytes->descriptor(), /*readable=*/false});
  }
  if (!awaited.empty()) libswap::wait_for_any(awaited, kLongestWait);
}

std::optional<std::string> SocketTransport::gone(Rank peer) {
  const SocketLink& link = peers_[index_of(peer)].link;
  auto why = link.words->over();
  if (why && link.bytes != nullptr && !link.bytes->over()) return std::nullopt;
  return why;
}

}  // namespace ebb::libmuon
