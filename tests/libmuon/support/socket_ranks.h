// Ranks as processes of one machine, joined by sockets: what ranks are to each other under a
// launcher, with every way in which one of them can die. For tests: all bytes go through memory
// twice.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "ebb/libmuon/comm/communicator.h"

namespace ebb::test {

// Forks a process a rank, runs `body` in each and waits for all. What each exited with: the body's
// answer, or minus the signal that ended it. REQUIRES: no other thread runs in this process.
std::vector<int> run_processes(
    std::uint32_t world, std::chrono::milliseconds limit,
    const std::function<int(std::unique_ptr<libmuon::Communicator>)>& body);

}  // namespace ebb::test
