// What a row of the covering array means: how one training is run. Every run that keeps momentum
// alike ends with the same weights and state, whatever it is. Parameters are as they come: shorter
// than a tile, a chunk, a strip or the number of ranks, and longer.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ebb/libmuon/step/engine.h"
#include "tests/libmuon/covering/array.h"

namespace ebb::test {

enum class RanksAre : std::uint8_t { threads, sockets, mpi };
// Of what paging needs: the least, that and a quarter of the state, everything in memory.
enum class Budget : std::uint8_t { least, quarter, all };

struct Run {
  std::uint32_t ranks = 1;
  std::uint32_t copies = 1;  // of each gradient; which a rank has: its number / (ranks / copies)
  RanksAre ranks_are = RanksAre::threads;
  Budget budget = Budget::all;
  libmuon::EngineConfig config;
};

// Value 0 of every factor together: one rank that keeps everything in memory.
struct FactorOfRuns {
  struct Value {
    std::string_view name;
    void (*set)(Run&);
  };
  std::string_view name;
  std::vector<Value> values;
};
const std::vector<FactorOfRuns>& factors_of_runs();

// Which values there are, and which do not go together. Without MPI: none of its runs.
enum class Mpi : std::uint8_t { with, without };
Factors factors(Mpi mpi);

Run run_of(const Row& row);
std::string text_of(const Row& row);  // for people
// The same run with the least memory and the smallest tiles: it pages wherever there is state.
Row paged(Row row);
// The same run with momentum kept as the other keeps it: what a run leaves to the next depends on
// that alone, and so does how it ends.
Row of_the_same_state(Row row, const Row& other);

// Parameters of all kinds, in groups of Muon and AdamW; uneven sizes, a stack, bf16 and fp32.
libmuon::ModelSpec model_of_runs();

}  // namespace ebb::test
