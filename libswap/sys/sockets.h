// Stream sockets between processes, of one machine or of several, before they are pipes: listening,
// connecting, and the first words, with which a descriptor can come. Nothing waits.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "ebb/formats/core/bytes.h"
#include "ebb/formats/core/result.h"
#include "ebb/libswap/sys/unique.h"

namespace ebb::libswap {

// For the machine's own processes, under a name without a file.
Result<Descriptor> listen_locally(const std::string& name);
// For other machines, at an address of this one and a port of the kernel's choice; `host` and
// `port` become what the others connect with. Code::usage for a host that is none of this
// machine's.
Result<Descriptor> listen_to_network(std::string& host, std::uint16_t& port);
// The next who has connected; none: no descriptor.
Descriptor accept_one(const Descriptor& listener);

// Connected at once, or Code::peer.
Result<Descriptor> connect_locally(const std::string& name);
// Connected, or not, when it can be written: connection_failure() says which.
Result<Descriptor> begin_to_connect(const std::string& host, std::uint16_t port);
Result<> connection_failure(const Descriptor& socket);

// So few bytes that they go at once, or Code::peer; and a descriptor, if there is one.
Result<> send_words(const Descriptor& socket, ByteView words, const Descriptor& attached = {});
// Appends what has come, up to `wanted` bytes in all, and keeps a descriptor that came with them.
// False: nothing more will come.
bool receive_words(const Descriptor& socket, std::size_t wanted, ByteVector& words,
                   Descriptor& attached);

// Waits, so long at most (milliseconds, -1: without end), until one of them can be read or written;
// sets which.
struct Awaited {
  int socket = -1;  // of none nothing is awaited
  bool readable = true;
  bool ready = false;
};
void wait_for_any(std::span<Awaited> sockets, int milliseconds);

}  // namespace ebb::libswap
