// A transport inside one process, for tests: what is sent lies in a box until it is taken. A long
// message has not gone before, as under MPI.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "ebb/libmuon/comm/transport.h"

namespace ebb::test {

// Looks at each message before it goes, on the thread that sends it; an error is the transport's.
using Inspect = std::function<Result<>(Rank from, Rank to, std::uint32_t tag, ByteView message)>;

// By rank.
std::vector<std::unique_ptr<libmuon::Transport>> make_mailboxes(
    std::uint32_t world,
    Inspect inspect = [](Rank, Rank, std::uint32_t, ByteView) { return Result<>(); });

}  // namespace ebb::test
