// Connecting: from the listeners' addresses to a link with each of the other ranks. Of two, the
// higher connects; each shows the other what its address says, so that a stranger on a port takes
// nobody's place.
#pragma once

#include <chrono>
#include <span>
#include <string>
#include <vector>

#include "ebb/formats/core/units.h"
#include "ebb/libmuon/comm/socket_listener.h"
#include "ebb/libmuon/comm/socket_transport.h"

namespace ebb::libmuon {

// By rank; what it waits for comes within the limit (zero: none), or Code::peer names who did not.
// `ring_bytes`: a power of two, of each of the two rings between ranks of one machine.
Result<std::vector<SocketLink>> connect_all(const SocketListener& listener, Rank rank,
                                            std::span<const SocketAddress> addresses,
                                            std::uint64_t ring_bytes,
                                            std::chrono::milliseconds limit);

}  // namespace ebb::libmuon
