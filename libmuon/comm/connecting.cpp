#include "ebb/libmuon/comm/connecting.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <list>
#include <memory>
#include <utility>

#include "ebb/libmuon/comm/meeting.h"
#include "ebb/libswap/sys/sockets.h"

namespace ebb::libmuon {
namespace {

using libswap::Descriptor;
using Clock = std::chrono::steady_clock;

enum class Carries : std::uint32_t { words, bytes };

// What who connects says first; with it comes the memory of the rings, between ranks of one
// machine. The answer is the other's secret.
struct Hello {
  char asked[SocketAddress::kSecretDigits] = {};
  std::uint32_t from = 0;
  Carries carries = Carries::words;
};
using Answer = std::array<char, SocketAddress::kSecretDigits>;

// A connection that is not one of a link yet.
struct Call {
  enum class Awaits : std::uint8_t { connection, hello, answer };
  Awaits awaits = Awaits::hello;
  Descriptor socket;
  std::uint32_t peer = 0;  // of those that this rank makes
  Carries carries = Carries::words;
  Descriptor memory;  // of the rings
  ByteVector heard;
};

bool hear(Call& call, std::size_t bytes) {
  return libswap::receive_words(call.socket, bytes, call.heard, call.memory);
}

// In a time that does not tell how much of it is right.
bool same(std::string_view a, std::string_view b) {
  unsigned differs = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    differs |= static_cast<unsigned char>(a[i] ^ b[i]);
  return differs == 0;
}

class Connecting {
 public:
  Connecting(const SocketListener& listener, Rank rank, std::span<const SocketAddress> addresses,
             std::uint64_t ring_bytes)
      : listener_(listener),
        me_(index_of(rank)),
        addresses_(addresses),
        ring_bytes_(ring_bytes),
        links_(addresses.size()) {}

  Result<std::vector<SocketLink>> all(std::chrono::milliseconds limit) {
    const auto end = Clock::now() + limit;
    for (std::uint32_t peer = 0; peer < me_; ++peer) EBB_TRY(call(peer));
    for (auto missing = this->missing(); !missing.empty(); missing = this->missing()) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
      if (limit.count() != 0 && left.count() <= 0)
        return Error{Code::peer, compose("{} did not connect with rank {} within {} ms, which is "
                                         "the limit",
                                         text_of(missing), me_, limit.count())};
      EBB_TRY(wait(limit.count() == 0 ? -1 : static_cast<int>(left.count())));
    }
    return std::move(links_);
  }

 private:
  bool on_one_machine(std::uint32_t peer) const {
    return !addresses_[peer].machine.empty() && addresses_[peer].machine == addresses_[me_].machine;
  }
  bool is_whole(std::uint32_t peer) const {
    const SocketLink& link = links_[peer];
    return link.words != nullptr && (link.ring != nullptr || link.bytes != nullptr);
  }
  std::vector<Rank> missing() const {
    std::vector<Rank> missing;
    for (std::uint32_t peer = 0; peer < links_.size(); ++peer)
      if (peer != me_ && !is_whole(peer)) missing.push_back(Rank{peer});
    return missing;
  }

  // With one rank: one connection, or two.
  Result<> call(std::uint32_t peer) {
    const SocketAddress& address = addresses_[peer];
    if (on_one_machine(peer)) {
      Call call{.awaits = Call::Awaits::connection, .peer = peer};
      EBB_TRY_ASSIGN(call.socket, named(peer, libswap::connect_locally(address.local)));
      EBB_TRY_ASSIGN(call.memory, libswap::RingPipe::make_memory(ring_bytes_));
      calls_.push_back(std::move(call));
      return {};
    }
    if (address.host.empty())
      return Error{
          Code::usage,
          compose("rank {} listens on its machine alone, and rank {} is on another", peer, me_),
          "name the address by which the other machines reach each rank"};
    for (const Carries carries : {Carries::words, Carries::bytes}) {
      Call call{.awaits = Call::Awaits::connection, .peer = peer, .carries = carries};
      EBB_TRY_ASSIGN(call.socket,
                     named(peer, libswap::begin_to_connect(address.host, address.port)));
      calls_.push_back(std::move(call));
    }
    return {};
  }
  template <typename T>
  Result<T> named(std::uint32_t peer, Result<T> answer) const {
    if (!answer)
      return Error{answer.error().code, compose("rank {} cannot connect with rank {}: {}", me_,
                                                peer, answer.error().message)};
    return answer;
  }

  Result<> wait(int milliseconds) {
    std::vector<libswap::Awaited> awaited = {{listener_.local().get()},
                                             {listener_.network().get()}};
    for (const Call& call : calls_)
      awaited.push_back({call.socket.get(), call.awaits != Call::Awaits::connection});
    libswap::wait_for_any(awaited, milliseconds);
    auto each = awaited.begin() + 2;
    for (auto call = calls_.begin(); call != calls_.end(); ++each) {
      if (!each->ready) {
        ++call;
        continue;
      }
      EBB_TRY_ASSIGN(const bool goes_on, go_on(*call));
      call = goes_on ? std::next(call) : calls_.erase(call);
    }
    if (awaited[0].ready) accept(listener_.local());
    if (awaited[1].ready) accept(listener_.network());
    return {};
  }

  void accept(const Descriptor& listener) {
    while (Descriptor socket = libswap::accept_one(listener))
      calls_.push_back({.awaits = Call::Awaits::hello, .socket = std::move(socket)});
  }

  // False: it is a part of a link now, or a stranger's.
  Result<bool> go_on(Call& call) {
    switch (call.awaits) {
      case Call::Awaits::connection:
        return named(call.peer, introduce(call));
      case Call::Awaits::answer:
        return named(call.peer, hear_answer(call));
      case Call::Awaits::hello:
        break;
    }
    return hear_hello(call);
  }

  Result<bool> introduce(Call& call) const {
    EBB_TRY(libswap::connection_failure(call.socket));
    Hello hello{.from = me_, .carries = call.carries};
    std::ranges::copy(addresses_[call.peer].asked, hello.asked);
    EBB_TRY(libswap::send_words(call.socket, std::as_bytes(std::span(&hello, 1)), call.memory));
    call.awaits = Call::Awaits::answer;
    return true;
  }

  Result<bool> hear_answer(Call& call) {
    if (!hear(call, sizeof(Answer)))
      return Error{Code::peer, "it ended, or does not know this rank"};
    if (call.heard.size() < sizeof(Answer)) return true;
    if (!same(formats::text_of(call.heard), addresses_[call.peer].answered))
      return Error{Code::peer, "somebody else listens there"};
    EBB_TRY(take(call, call.peer, libswap::RingPipe::End::maker));
    return false;
  }

  Result<bool> hear_hello(Call& call) {
    if (!hear(call, sizeof(Hello))) return false;
    if (call.heard.size() < sizeof(Hello)) return true;
    Hello hello;
    std::memcpy(&hello, call.heard.data(), sizeof(hello));
    if (!same({hello.asked, sizeof(hello.asked)}, addresses_[me_].asked)) return false;
    if (!is_expected(hello, call)) return false;
    call.carries = hello.carries;
    EBB_TRY(named(
        hello.from,
        libswap::send_words(call.socket, std::as_bytes(std::span(addresses_[me_].answered)))));
    EBB_TRY(take(call, hello.from, libswap::RingPipe::End::guest));
    return false;
  }
  // Each of a higher rank's connections, once.
  bool is_expected(const Hello& hello, const Call& call) const {
    if (hello.from <= me_ || hello.from >= links_.size()) return false;
    const SocketLink& link = links_[hello.from];
    if (hello.carries == Carries::bytes) return link.bytes == nullptr;
    return link.words == nullptr && bool{call.memory} == on_one_machine(hello.from);
  }

  // The connection becomes a part of the link.
  Result<> take(Call& call, std::uint32_t peer, libswap::RingPipe::End end) {
    SocketLink& link = links_[peer];
    if (call.memory) {
      EBB_TRY_ASSIGN(link.ring, libswap::RingPipe::open(call.memory, end));
    }
    auto& place = call.carries == Carries::words ? link.words : link.bytes;
    place = std::make_unique<libswap::SocketPipe>(std::move(call.socket));
    return {};
  }

  const SocketListener& listener_;
  const std::uint32_t me_;
  const std::span<const SocketAddress> addresses_;
  const std::uint64_t ring_bytes_;
  std::vector<SocketLink> links_;
  std::list<Call> calls_;
};

}  // namespace

Result<std::vector<SocketLink>> connect_all(const SocketListener& listener, Rank rank,
                                            std::span<const SocketAddress> addresses,
                                            std::uint64_t ring_bytes,
                                            std::chrono::milliseconds limit) {
  return Connecting(listener, rank, addresses, ring_bytes).all(limit);
}

}  // namespace ebb::libmuon
