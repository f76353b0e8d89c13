// What follows from a sweep: settings to use, and the time of a step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tools/swap_bench/sweep.h"

namespace ebb::tools::swap_bench {

// What the measurements say of reading and writing at once.
enum class Verdict : std::uint8_t {
  other_wins,       // a setting beats the usual one by more than the spread of either
  no_clear_winner,  // none does: the usual one stays
  too_few_rounds,   // nothing is known of the spread: the usual one stays
  in_memory,        // there is no disk
};
struct Advice {
  Verdict verdict = Verdict::no_clear_winner;
  Row use;
  Row fastest;  // by its median
};
// In its slowest round one was faster than the other in its fastest; and its median leads by more
// than the other's spread, and by a tenth.
bool beats(const Row& one, const Row& other);
// Of several that beat the usual one, and that the fastest of all does not beat, the least in
// flight, then the larger blocks: what is the same within the spread gets the same answer.
Advice advice_of(const Sweep& sweep);

// Optimizer state in bytes. Of a model: fp32 master and momentum of each matrix (Muon), master and
// two moments of all else (AdamW).
struct State {
  std::uint64_t bytes = 0;
  std::uint64_t resident_bytes = 0;              // of it, never paged
  std::uint64_t muon_elems = 0, adam_elems = 0;  // 0: nobody asked for a model

  std::uint64_t paged_bytes() const { return bytes - resident_bytes; }
};
Result<State> state_of_model(const std::string& path);

// Of the disk alone: what it takes where computing takes less.
struct Step {
  State state;
  std::uint64_t read_bytes = 0, written_bytes = 0;
  double seconds = 0;
  std::uint64_t store_bytes = 0;  // that a store of three slots reserves and once writes
  double create_seconds = 0;
};
Step step_of(const State& state, const Rates& rates);

}  // namespace ebb::tools::swap_bench
