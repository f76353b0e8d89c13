// Ranks over sockets: the Communicator of processes that something else has brought together
// and that can pass one line of text to each other: torch's all_gather_object, MPI, a shared file.
//
//   EBB_TRY_ASSIGN(auto listener, SocketListener::open({.host = "10.0.0.7"}));
//   const std::vector<std::string> addresses = all_gather(listener.address());
//   EBB_TRY_ASSIGN(auto ranks, make_socket_ranks(std::move(listener), rank, addresses));
//
// Processes of one machine say what they have to say over local sockets, and their rounds go
// through memory that both map; between machines there are two connections a pair. A process that
// ends is known to the others at once; one that vanished with its machine, within a minute or the
// limit, whichever comes first. In a child made by fork() the sockets are closed.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <string>

#include "ebb/libmuon/comm/communicator.h"
#include "ebb/libmuon/comm/socket_listener.h"

namespace ebb::libmuon {

// Collective. `addresses`: all ranks' listeners', by rank; the world is as large. The listener goes
// when it returns.
//   Code::usage  no such rank, an address that is none, another rank's in this one's place; ranks
//                on other machines where a listener has no host; limits that differ
//   Code::peer   ranks that did not come within the limit (zero: none), or ended
//   Code::limit  more descriptors than this process may open
Result<std::unique_ptr<Communicator>> make_socket_ranks(
    SocketListener listener, Rank rank, std::span<const std::string> addresses,
    std::chrono::milliseconds limit = kPeerLimit);

}  // namespace ebb::libmuon
