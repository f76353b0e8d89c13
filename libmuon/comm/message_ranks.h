// Ranks over messages: the Communicator of processes that a Transport connects (MPI: mpi_ranks.h).
//
// Every rank tells every other what concerns that one and decides for itself: all see enough to
// decide the same. How the bytes of a round travel is the transport's: over MPI in copies of at
// most kMostMessage, so that what goes on late, after a call was given up, never touches the
// caller's memory; of them four are on their way out, and eight come: 12 MiB of kMostRanksBytes.
#pragma once

#include <chrono>
#include <memory>

#include "ebb/libmuon/comm/communicator.h"
#include "ebb/libmuon/comm/transport.h"

namespace ebb::libmuon {

// Collective; waits for all ranks as later calls do. `able`: why this rank cannot take part, if so:
// all ranks answer it, and name the rank. Code::usage also where ranks name different limits, or
// come from builds whose messages differ.
Result<std::unique_ptr<Communicator>> make_message_ranks(std::unique_ptr<Transport> transport,
                                                         std::chrono::milliseconds limit,
                                                         const Result<>& able = {});

}  // namespace ebb::libmuon
