// Ranks as processes of one machine, joined by the product's sockets: what a launcher starts, with
// every way in which one of them can die.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "ebb/libmuon/comm/communicator.h"
#include "ebb/libmuon/comm/socket_listener.h"

namespace ebb::test {

// Of processes that are to be connected as if they were on several machines.
inline libmuon::Reach across_a_network() { return {"127.0.0.1", libmuon::OneMachine::network}; }

// Forks a process a rank, runs `body` in each and waits for all. What each exited with: the body's
// answer, or minus the signal that ended it. REQUIRES: no other thread runs in this process.
std::vector<int> run_processes(
    std::uint32_t world, std::chrono::milliseconds limit,
    const std::function<int(std::unique_ptr<libmuon::Communicator>)>& body,
    const libmuon::Reach& reach = {});

}  // namespace ebb::test
