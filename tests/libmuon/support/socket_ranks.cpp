#include "tests/libmuon/support/socket_ranks.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>

#include "ebb/formats/core/bytes.h"
#include "ebb/libmuon/comm/home_ranks.h"
#include "ebb/libmuon/comm/meeting.h"
#include "ebb/libswap/sys/mutex.h"

namespace ebb::test {
namespace {

using libmuon::Brought;
using libmuon::Decision;
using libmuon::Parcel;
using libmuon::ReceiveBuffer;
using libmuon::SendBuffer;
using libmuon::Verb;
using Clock = std::chrono::steady_clock;

enum class Kind : std::uint64_t { brought, data, gone };

struct Header {
  Kind kind = Kind::brought;
  std::uint64_t meeting = 0;  // of gone: the first that the sender has no part in
  std::uint64_t bytes = 0;
};
struct Frame {
  Header header;
  ByteVector body;
};

// One end of a stream socket, and what has come and waits to go.
struct Peer {
  int socket = -1;  // none: this rank itself
  ByteVector in, out;
  bool ended = false;  // nothing more will come

  void put(Kind kind, std::uint64_t meeting, ByteView body) {
    const Header header{kind, meeting, body.size()};
    formats::append_bytes(out, std::as_bytes(std::span(&header, 1)));
    formats::append_bytes(out, body);
  }
  std::optional<Header> next() const {
    Header header;
    if (in.size() < sizeof(header)) return std::nullopt;
    std::memcpy(&header, in.data(), sizeof(header));
    if (in.size() - sizeof(header) < header.bytes) return std::nullopt;
    return header;
  }
  // REQUIRES: next().
  Frame take() {
    Frame frame{*next(), {}};
    const auto body = in.begin() + sizeof(Header);
    const auto end = body + static_cast<std::ptrdiff_t>(frame.header.bytes);
    frame.body.assign(body, end);
    in.erase(in.begin(), end);
    return frame;
  }
  // Without waiting.
  void receive() {
    std::array<std::byte, 64 << 10> bytes{};
    const ssize_t count = ::recv(socket, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count > 0)
      formats::append_bytes(in, std::span(bytes).first(static_cast<std::size_t>(count)));
    ended = count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR);
  }
  void send() {
    const ssize_t count = ::send(socket, out.data(), out.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count > 0) out.erase(out.begin(), out.begin() + count);
    if (count < 0 && errno != EAGAIN && errno != EINTR) out.clear();  // nobody will read it
  }
};

void append_number(ByteVector& bytes, std::uint64_t number) {
  formats::append_bytes(bytes, std::as_bytes(std::span(&number, 1)));
}

std::uint64_t take_number(ByteView& bytes) {
  std::uint64_t number = 0;
  EBB_CHECK(bytes.size() >= sizeof(number));
  std::memcpy(&number, bytes.data(), sizeof(number));
  bytes = bytes.subspan(sizeof(number));
  return number;
}

ByteVector encode(const Brought& brought) {
  ByteVector bytes;
  append_number(bytes, static_cast<std::uint64_t>(brought.verb));
  append_number(bytes, static_cast<std::uint64_t>(brought.value));
  append_number(bytes, brought.numbers.size());
  for (const std::int64_t number : brought.numbers)
    append_number(bytes, static_cast<std::uint64_t>(number));
  for (const auto* parcels : {&brought.sends, &brought.receives}) {
    append_number(bytes, parcels->size());
    for (const Parcel& parcel : *parcels) {
      append_number(bytes, index_of(parcel.peer));
      append_number(bytes, parcel.bytes);
      append_number(bytes, static_cast<std::uint64_t>(parcel.memory));
    }
  }
  return bytes;
}

Brought decode(ByteView bytes) {
  Brought brought;
  brought.verb = static_cast<Verb>(take_number(bytes));
  brought.value = static_cast<std::int64_t>(take_number(bytes));
  brought.numbers.resize(take_number(bytes));
  for (std::int64_t& number : brought.numbers)
    number = static_cast<std::int64_t>(take_number(bytes));
  for (auto* parcels : {&brought.sends, &brought.receives}) {
    parcels->resize(take_number(bytes));
    for (Parcel& parcel : *parcels) {
      parcel.peer = Rank{static_cast<std::uint32_t>(take_number(bytes))};
      parcel.bytes = take_number(bytes);
      parcel.memory = static_cast<Parcel::Memory>(take_number(bytes));
    }
  }
  return brought;
}

// What the communicators of one process share: sockets for duplicates, by peer, made before the
// processes were; and the end of the world.
class Family {
 public:
  explicit Family(std::vector<std::vector<int>> sockets) : sockets_(std::move(sockets)) {}

  // The same one on all ranks, which all take them in the same order.
  std::size_t take() {
    const libswap::MutexLock lock(mutex_);
    EBB_CHECK(taken_ < sockets_.size());
    return taken_++;
  }
  const std::vector<int>& sockets(std::size_t number) const { return sockets_[number]; }
  std::optional<Error> over() {
    const libswap::MutexLock lock(mutex_);
    return over_;
  }
  // Wakes whoever waits, here and in the other processes. Sockets stay open until all are closed.
  void end(const Error& why) {
    const libswap::MutexLock lock(mutex_);
    if (!over_) over_ = why;
    for (const std::vector<int>& mesh : sockets_)
      for (const int socket : mesh)
        if (socket >= 0) ::shutdown(socket, SHUT_RDWR);
  }
  ~Family() {
    for (const std::vector<int>& mesh : sockets_)
      for (const int socket : mesh)
        if (socket >= 0) ::close(socket);
  }
  Family(const Family&) = delete;
  Family& operator=(const Family&) = delete;

 private:
  const std::vector<std::vector<int>> sockets_;
  libswap::Mutex mutex_;
  std::size_t taken_ EBB_GUARDED_BY(mutex_) = 0;
  std::optional<Error> over_ EBB_GUARDED_BY(mutex_);
};

// Every rank tells every other what it brings and decides for itself: all see the same, so all
// decide the same.
class SocketRank : public libmuon::Communicator {
 public:
  SocketRank(Rank rank, std::shared_ptr<Family> family, std::chrono::milliseconds limit)
      : rank_(rank), limit_(limit), family_(std::move(family)), number_(family_->take()) {
    for (const int socket : family_->sockets(number_)) peers_.emplace_back().socket = socket;
  }
  ~SocketRank() override {
    if (number_ == 0)
      SocketRank::abort();
    else if (!over_)
      leave(libmuon::gave_up(rank_), meeting_ + 1);
  }
  SocketRank(const SocketRank&) = delete;
  SocketRank& operator=(const SocketRank&) = delete;

  Rank rank() const override { return rank_; }
  std::uint32_t world() const override { return static_cast<std::uint32_t>(peers_.size()); }
  std::chrono::milliseconds limit() const override { return limit_; }

  Result<std::int64_t> agree(std::int64_t mine) override {
    EBB_TRY_ASSIGN(const Decision all, meet({.verb = Verb::agree, .value = mine}));
    return all.smallest;
  }
  Result<> sum(std::span<std::int64_t> numbers) override {
    if (numbers.data() == nullptr) numbers = {};  // brings none
    EBB_TRY_ASSIGN(const Decision all,
                   meet({.verb = Verb::sum, .numbers = {numbers.begin(), numbers.end()}}));
    std::ranges::copy(all.totals, numbers.begin());
    return {};
  }
  bool takes(const libswap::Device& /*device*/) const override { return false; }
  Result<libswap::Event> begin_exchange(std::span<const SendBuffer> sends,
                                        std::span<const ReceiveBuffer> receives,
                                        std::span<const libswap::Event> after) override {
    libswap::all_of(after).wait();
    Brought brought{.verb = Verb::exchange};
    for (const SendBuffer& send : sends)
      brought.sends.push_back({send.peer, send.data.size(), memory_of(*this, send.data)});
    for (const ReceiveBuffer& receive : receives)
      brought.receives.push_back(
          {receive.peer, receive.data.size(), memory_of(*this, receive.data)});
    EBB_TRY(meet(brought));
    EBB_TRY(hand_over(sends, receives));
    return libswap::Event();
  }
  Result<std::unique_ptr<Communicator>> duplicate() override {
    if (const auto over = family_->over()) return *over;
    return std::unique_ptr<Communicator>(std::make_unique<SocketRank>(rank_, family_, limit_));
  }
  void abort() override {
    if (!over_) end(libmuon::gave_up(rank_), meeting_ + 1);
  }

 private:
  Result<Decision> meet(const Brought& mine) {
    if (over_) return *over_;
    EBB_TRY(still_on());
    ++meeting_;
    verb_ = mine.verb;
    const ByteVector encoded = encode(mine);
    for (Peer& peer : peers_)
      if (peer.socket >= 0) peer.put(Kind::brought, meeting_, encoded);
    std::vector<bool> wanted(peers_.size(), true);
    wanted[index_of(rank_)] = false;
    EBB_TRY_ASSIGN(const std::vector<Frame> frames, frames_from(wanted, Counted::from_the_call));
    std::vector<Brought> all(peers_.size());
    for (std::size_t peer = 0; peer < all.size(); ++peer)
      all[peer] = wanted[peer] ? decode(frames[peer].body) : mine;
    return libmuon::decide(all);
  }

  // The bytes of a round that all found well: one frame for each peer that gets any.
  Result<> hand_over(std::span<const SendBuffer> sends, std::span<const ReceiveBuffer> receives) {
    std::vector<ByteVector> out(peers_.size());
    std::vector<bool> sent(peers_.size(), false), wanted(peers_.size(), false);
    for (const SendBuffer& send : sends) {
      formats::append_bytes(out[index_of(send.peer)], send.data.bytes());
      sent[index_of(send.peer)] = true;
    }
    for (std::size_t peer = 0; peer < peers_.size(); ++peer)
      if (sent[peer] && Rank{static_cast<std::uint32_t>(peer)} != rank_)
        peers_[peer].put(Kind::data, meeting_, out[peer]);
    for (const ReceiveBuffer& receive : receives)
      wanted[index_of(receive.peer)] = receive.peer != rank_;
    EBB_TRY_ASSIGN(std::vector<Frame> frames, frames_from(wanted, Counted::from_the_last_bytes));
    frames[index_of(rank_)].body = std::move(out[index_of(rank_)]);
    std::vector<std::size_t> taken(peers_.size(), 0);
    for (const ReceiveBuffer& receive : receives) {
      const std::size_t peer = index_of(receive.peer);
      const auto from = std::span(frames[peer].body).subspan(taken[peer], receive.data.size());
      std::ranges::copy(from, receive.data.data);
      taken[peer] += receive.data.size();
    }
    return {};
  }

  // Of whom the limit is asked: to come at all, or, once all are here, to go on moving bytes.
  enum class Counted : std::uint8_t { from_the_call, from_the_last_bytes };

  // One frame from each rank that is wanted, and all that waits to go is gone.
  Result<std::vector<Frame>> frames_from(std::vector<bool> wanted, Counted counted) {
    std::vector<Frame> frames(peers_.size());
    auto heard = Clock::now();
    for (;;) {
      EBB_TRY(still_on());
      EBB_TRY(look_at_heads(wanted, frames));
      const bool all_here = std::ranges::find(wanted, true) == wanted.end();
      const bool all_gone =
          std::ranges::all_of(peers_, [](const Peer& peer) { return peer.out.empty(); });
      if (all_here && all_gone) return frames;
      if (pump(heard) && counted == Counted::from_the_last_bytes) heard = Clock::now();
      const bool late = limit_.count() != 0 && Clock::now() - heard >= limit_;
      if (!late) continue;
      std::vector<Rank> missing;
      for (std::uint32_t peer = 0; peer < peers_.size(); ++peer)
        if (wanted[peer] || !peers_[peer].out.empty()) missing.push_back(Rank{peer});
      return end(libmuon::silent(missing, verb_, limit_), meeting_);
    }
  }

  // Takes what has come from those that are wanted; an error where somebody left before the end of
  // this meeting.
  Result<> look_at_heads(std::vector<bool>& wanted, std::vector<Frame>& frames) {
    for (std::uint32_t rank = 0; rank < peers_.size(); ++rank) {
      Peer& peer = peers_[rank];
      if (wanted[rank] && is_next(peer, Kind::brought, Kind::data)) {
        frames[rank] = peer.take();
        wanted[rank] = false;
      }
      if (is_next(peer, Kind::gone, Kind::gone) && peer.next()->meeting <= meeting_) {
        const ByteVector text = peer.take().body;
        const Error why{Code::peer, {reinterpret_cast<const char*>(text.data()), text.size()}};
        // A peer's duplicate may be gone alone; where its world is over, the first says so too.
        return number_ == 0 ? end(why, meeting_) : leave(why, meeting_);
      }
      if (wanted[rank] && peer.ended)
        return end({Code::peer, compose("rank {} is gone: its process ended", rank)}, meeting_);
    }
    return {};
  }
  static bool is_next(const Peer& peer, Kind one, Kind other) {
    const auto head = peer.next();
    return head && (head->kind == one || head->kind == other);
  }

  // Waits until bytes can move, or until the limit since `heard`; whether some came.
  bool pump(Clock::time_point heard) {
    std::vector<pollfd> polled;
    for (const Peer& peer : peers_) {
      const int events = (peer.ended ? 0 : POLLIN) | (peer.out.empty() ? 0 : POLLOUT);
      polled.push_back({events == 0 ? -1 : peer.socket, static_cast<short>(events), 0});
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(heard + limit_ - Clock::now());
    const auto wait = std::max<std::int64_t>(0, left.count());
    if (::poll(polled.data(), polled.size(), limit_.count() == 0 ? -1 : static_cast<int>(wait)) < 0)
      return false;
    bool came = false;
    for (std::size_t i = 0; i < peers_.size(); ++i) {
      const std::size_t before = peers_[i].in.size();
      if ((polled[i].revents & (POLLIN | POLLHUP | POLLERR)) != 0) peers_[i].receive();
      if ((polled[i].revents & (POLLOUT | POLLHUP | POLLERR)) != 0) peers_[i].send();
      came = came || peers_[i].in.size() != before;
    }
    return came;
  }

  // Whether nobody ended the world in another communicator of this process.
  Result<> still_on() {
    if (const auto over = family_->over()) return leave(*over, meeting_);
    return {};
  }

  // The world is over, for all communicators.
  Error end(Error why, std::uint64_t meeting) {
    const Error told = leave(std::move(why), meeting);
    family_->end(told);
    return told;
  }

  // This rank takes part in nothing from `meeting` on, and tells why.
  Error leave(Error why, std::uint64_t meeting) {
    over_ = std::move(why);
    for (Peer& peer : peers_) {
      if (peer.socket < 0) continue;
      peer.put(Kind::gone, meeting, std::as_bytes(std::span(over_->message)));
      peer.send();
      ::shutdown(peer.socket, SHUT_WR);  // also for those that could not take it whole
    }
    return *over_;
  }

  const Rank rank_;
  const std::chrono::milliseconds limit_;
  const std::shared_ptr<Family> family_;
  const std::size_t number_;  // 0: the first, of which the others are duplicates
  std::vector<Peer> peers_;
  std::uint64_t meeting_ = 0;
  Verb verb_ = Verb::agree;  // of this meeting
  std::optional<Error> over_;
};

// By rank, communicator and peer.
using Sockets = std::vector<std::vector<std::vector<int>>>;

Sockets connect_all(std::uint32_t world) {
  constexpr std::size_t kCommunicators = 6;
  Sockets sockets(world, std::vector(kCommunicators, std::vector<int>(world, -1)));
  for (std::size_t number = 0; number < kCommunicators; ++number)
    for (std::uint32_t a = 0; a < world; ++a)
      for (std::uint32_t b = a + 1; b < world; ++b) {
        std::array<int, 2> pair{};
        EBB_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()) == 0);
        sockets[a][number][b] = pair[0];
        sockets[b][number][a] = pair[1];
      }
  return sockets;
}

[[noreturn]] void be_rank(Rank rank, Sockets& sockets, std::chrono::milliseconds limit,
                          const std::function<int(std::unique_ptr<libmuon::Communicator>)>& body) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  auto family = std::make_shared<Family>(std::move(sockets[index_of(rank)]));
  sockets[index_of(rank)].clear();
  for (const auto& other : sockets)
    static_cast<void>(Family(other));  // closes what is another rank's
  const int answer =
      body(libmuon::at_home(std::make_unique<SocketRank>(rank, std::move(family), limit)));
  std::fflush(nullptr);
  ::_exit(answer);
}

}  // namespace

std::vector<int> run_processes(
    std::uint32_t world, std::chrono::milliseconds limit,
    const std::function<int(std::unique_ptr<libmuon::Communicator>)>& body) {
  Sockets sockets = connect_all(world);
  std::fflush(nullptr);
  std::vector<pid_t> children;
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    const pid_t child = ::fork();
    EBB_CHECK(child >= 0);
    if (child == 0) be_rank(Rank{rank}, sockets, limit, body);
    children.push_back(child);
  }
  for (const auto& each : sockets) static_cast<void>(Family(each));  // closes them
  std::vector<int> answers;
  for (const pid_t child : children) {
    int status = 0;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    answers.push_back(WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status));
  }
  return answers;
}

}  // namespace ebb::test
