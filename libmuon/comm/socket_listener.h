// SocketListener: where the other ranks of a world reach this process, before they are connected.
#pragma once

#include <cstdint>
#include <string>

#include "ebb/formats/core/result.h"
#include "ebb/libswap/sys/unique.h"

namespace ebb::libmuon {

// How ranks of one machine are connected: through its memory, or as if they were on several.
enum class OneMachine : std::uint8_t { memory, network };

struct Reach {
  // A name or an address of this machine by which the other machines' ranks reach it ("node3",
  // "10.0.0.7", "fd00::7"). Empty: all ranks are on this machine.
  std::string host;
  OneMachine one_machine = OneMachine::memory;
};

// What an address says.
struct SocketAddress {
  std::string machine;  // the same for processes that can share memory; empty: for none
  std::string local;    // name of the local socket; empty: none
  std::string host;     // empty: not reachable from other machines
  std::uint16_t port = 0;
  // kSecretDigits each: what who connects shows, and is shown.
  std::string asked, answered;

  static constexpr std::size_t kSecretDigits = 32;
  std::string text() const;
  // Code::usage for what is none. `rank`: whose, for the message.
  static Result<SocketAddress> parse(const std::string& text, std::uint32_t rank);
};

class SocketListener {
 public:
  // Listens from now on. Code::usage for a host that is none of this machine's.
  static Result<SocketListener> open(const Reach& reach = {});
  // One word a field, one line: for all other ranks, and a secret between them: who knows it can
  // take a rank's place.
  std::string address() const { return address_.text(); }

  const SocketAddress& about() const { return address_; }
  const libswap::Descriptor& local() const { return local_; }
  const libswap::Descriptor& network() const { return network_; }

 private:
  SocketListener() = default;

  SocketAddress address_;
  libswap::Descriptor local_, network_;
};

}  // namespace ebb::libmuon
