// One start of the training that a soak kills: its ranks as threads of one process, or a process
// each. It says on its board where it is, and compares all it sees with the run that nothing
// happened to.
#pragma once

#include <filesystem>
#include <vector>

#include "tests/durability/soak/board.h"
#include "tests/libmuon/support/training.h"

namespace ebb::soak {

enum class RanksAre : std::uint8_t { threads, processes };
enum class Places : std::uint8_t { shared, separate };

struct Start {
  test::Training setup;
  RanksAre ranks = RanksAre::threads;
  Places places = Places::shared;
  std::vector<std::filesystem::path> directories;  // by rank; the same one where it is shared
  std::vector<std::filesystem::path> sources;      // of earlier starts on other ranks
  std::filesystem::path exports;
  std::uint64_t committed = 0, exported = 0;  // what must be there, as earlier starts were told
  std::uint64_t steps = 0;                    // then it ends in order
};

enum class Ended : int { in_order = 0, refused = 3, peer = 4 };

// REQUIRES: no other thread runs in this process.
Ended run_start(const Start& start, Board& board, const Reference& reference);
// Trains in memory and fills the reference in.
void train_undisturbed(const std::filesystem::path& directory, Reference& reference);

}  // namespace ebb::soak
