// A part of a run of the covering array: by processes, or by threads of this one.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "ebb/libmuon/comm/communicator.h"
#include "tests/libmuon/covering/runs.h"

namespace ebb::test {

// What happens on the way.
enum class Trouble : std::uint8_t {
  none,
  kill,  // a rank's process is killed in the step behind `until`, which is committed
  stop,  // a disk fails somewhere in each step, which stops on all ranks and is continued
};

// From what the directory holds to step `until`. Words of a command line, for MPI.
struct Leg {
  Row row;
  std::uint64_t until = 0;
  Trouble trouble = Trouble::none;
  std::uint64_t draw = 0;           // who, where and when
  std::filesystem::path directory;  // the store is in "swap", "hash" is that of weights and state,
                                    // "stopped" has a line for each step that was

  std::vector<std::string> words() const;
  static Leg from(const std::vector<std::string>& words);
};

// Of a rank's process: in order, some error, an error of a peer.
enum class Exit : int { well = 0, error = 3, peer = 4 };

// One rank, with a queue of its own; an error goes to stderr.
Exit run_process(const Leg& leg, libmuon::Communicator& ranks);
// All of them as threads of this process, over one queue.
Exit run_threads(const Leg& leg, const MakeAccelerator& make = late_accelerator);

}  // namespace ebb::test
