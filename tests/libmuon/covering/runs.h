// What a row of the covering array means: how one training is run. Every option of an engine is a
// factor here, a row of a table each: tests that hold of all of them are over these rows
// (covering_test.cpp). Runs with the same mathematics end with the same weights and state, whatever
// else they are. Parameters are as they come: shorter than a tile, a chunk, a strip or the number
// of ranks, and longer.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/libmuon/step/engine.h"
#include "tests/libmuon/covering/array.h"

namespace ebb::test {

enum class RanksAre : std::uint8_t { threads, sockets, network, mpi };
// Of what paging needs: the least, that and a quarter of the state, everything in memory.
enum class Budget : std::uint8_t { least, quarter, all };
enum class Absent : std::uint8_t { none, some, most };  // gradients, in a step
enum class Come : std::uint8_t { handed_in, late };     // when gradients are there
enum class Snapshots : std::uint8_t { at_end, every_step };
enum class Computes : std::uint8_t { host, device };
enum class Begins : std::uint8_t { initial, bound };         // with what weights
enum class Written : std::uint8_t { never, between_steps };  // weights, by the trainer

struct Run {
  std::uint32_t ranks = 1;
  std::uint32_t copies = 1;  // of each gradient; which a rank has: its number / (ranks / copies)
  RanksAre ranks_are = RanksAre::threads;
  Budget budget = Budget::all;
  Absent absent = Absent::none;
  Come come = Come::handed_in;
  Snapshots snapshots = Snapshots::at_end;
  Computes computes = Computes::host;
  Begins begins = Begins::initial;
  Written written = Written::never;
  libmuon::Side takes = libmuon::Side::host;  // the memory that thread ranks take messages from
  std::shared_ptr<libmuon::Accelerator> accelerator = nullptr;  // from make_ready() on
  libmuon::EngineConfig config;

  // What memory messages lie in.
  libmuon::Side wire() const;
};

// Value 0 of every factor together, the plain run: one rank that keeps everything in memory. It
// goes together with every other value.
struct FactorOfRuns {
  struct Value {
    std::string_view name;  // of no other value of any factor
    void (*set)(Run&);
  };
  std::vector<Value> values;
};
const std::vector<FactorOfRuns>& factors_of_runs();
std::vector<FactorOfRuns> factors_of_layout();
std::vector<FactorOfRuns> factors_of_options();
std::vector<FactorOfRuns> factors_of_sizes();
Choice choice_named(std::string_view value);

// --- what does not go together ---

// Each of some values with each of others: by name.
struct Pairs {
  std::vector<std::string_view> ones, others;
};
// Engine::plan refuses such a run, in which three ranks share each parameter.
struct Refused {
  Pairs pairs;
  std::string_view message;  // a part of it
};
// Such a run cannot be made, on this machine or at all.
struct NotHere {
  Pairs pairs;
  std::string_view why;
};
const std::vector<Refused>& refused();
const std::vector<NotHere>& not_here();

// Which values there are, and which do not go together. Without MPI: none of its runs.
enum class Mpi : std::uint8_t { with, without };
Factors factors(Mpi mpi);

// --- runs ---

// Without its budget and accelerator: nothing is started.
Run run_of(const Row& row);
// Makes those. `make` makes the accelerator where a device computes.
using MakeAccelerator = std::function<std::shared_ptr<libmuon::Accelerator>()>;
std::shared_ptr<libmuon::Accelerator> late_accelerator();
void make_ready(Run& run, const MakeAccelerator& make = late_accelerator);

std::string text_of(const Row& row);  // for people

// --- rows ---

// One value of a row is another one; what does not go together with it is as in the plain run.
Row with(Row row, Choice choice);
// The same run with the least memory and the smallest tiles: it pages wherever there is state.
Row paged(Row row);
// The plain run with the mathematics of the row: how both end.
Row plain_of(const Row& row);
// The same run with the mathematics and the masters of the other: what a run leaves to the next
// depends on those alone.
Row of_the_same_state(Row row, const Row& other);

// Parameters of all kinds, in groups of Muon and AdamW; uneven sizes, stacks, splits.
libmuon::ModelSpec model_of_runs();

}  // namespace ebb::test
