// Private to libmuon/step: the rooms of an Engine, and what wires them. docs/engine.md has the
// picture, and who writes what on which thread.
//   engine.cpp       its calls, and how a step ends
//   engine_open.cpp  create, resume, transfer, load
//   taking.cpp       masters take what the trainer wrote to its weights
//   state_by_name.cpp  a state is read, or written, by its name
//   before_step.cpp  what ranks decide before a step
//   recovery.cpp     the ways out of a step that stopped
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "ebb/libmuon/step/beginning.h"
#include "ebb/libmuon/step/engine.h"
#include "ebb/libmuon/step/entry.h"
#include "ebb/libmuon/step/fate.h"
#include "ebb/libmuon/step/step_run.h"
#include "ebb/libswap/state/state_home.h"

namespace ebb::libmuon {

// Owns the rooms. Threading: one thread drives (Entry); a step in flight is ended by that thread,
// or by the first of any that hand in a gradient of the next one.
struct Engine::Impl {
  Impl(const EngineConfig& config, Communicator& ranks, libswap::IoQueue& io,
       libswap::SwapDirectory& directory, Prepared prepared);
  // Allocates all that the engine needs beside its tiles.
  Result<> make_rooms();
  Result<> agree_all(const Result<>& mine, std::string_view doing);

  // engine_open.cpp
  // [C] Gets the state from where Engine::open() says.
  Result<> attach(const Start& start);
  // [C] Answers false where the store holds its state in other places than the plan's: it is to be
  // transferred.
  Result<bool> resume(const libswap::SwapDirectory::Entry& current, const ExpectedStore& expected);
  // Notes what differs from what the engine was opened with; refuses what cannot be taken over.
  Result<> compare(const formats::native::Manifest& manifest);
  Result<> take_over(const formats::native::Manifest& manifest);
  Result<> begin_anew(const Start& start);
  // [C] Reads what is known of the state before a tile is filled.
  Result<> read(Beginning& from);
  Result<> bind(std::span<const libswap::Buffer> given);
  Result<> check_bound(const Beginning& from) const;
  Result<> take_bound(const Beginning& from);  // [C]
  Result<> fill_and_commit(Beginning& from);   // [C]
  // [C] Decides how products are made (Computing::choose), and tells all that computes.
  Result<> choose_products(std::string_view kept);
  Result<> open_sweep();

  // taking.cpp
  Result<> can_take(std::span<const std::uint32_t> params);
  // [C] By parameter: whether its masters are to take their weights.
  Result<std::vector<bool>> agree_on_taken(std::span<const std::uint32_t> params);
  Result<> take(const std::vector<bool>& taken);  // [C]

  // state_by_name.cpp
  // The state's number, where it can be copied of all of these.
  Result<std::uint32_t> can_copy(const StateBuffers& some) const;
  // Their numbers; they are of the same parameters.
  Result<std::vector<std::uint32_t>> can_copy(std::span<const StateBuffers> states) const;
  // [C]
  Result<NamedStates> agree_on_states(std::span<const StateBuffers> states,
                                      std::optional<std::uint64_t> taken);
  // Of masters that are bound, or halves of them; empty: none are among them.
  std::span<const StateBuffer> bound(std::span<const StateBuffers> states) const;
  Result<> can_part(std::span<const StateBuffer> masters) const;
  // What is bound becomes these, or their high halves.
  void part(std::span<const StateBuffer> masters);

  // before_step.cpp
  Result<> check_ready(const StepArgs& args) const;
  Result<> agree_on_absent();                           // [C]
  Result<StepResult> check_step(const StepArgs& args);  // [C]

  // engine.cpp
  // Ends the step in flight, if one is: `outcome` is how.
  void end_step();
  Result<StepResult> outcome_of(const Flow::Ended& ended) EBB_REQUIRES(ending);
  // Takes what StepRun has counted into `stats`.
  void take_counted() EBB_REQUIRES(ending);
  // Ends the step in flight: a gradient is the next step's. Any thread that hands in.
  Result<> may_hand_in();
  // [C] Forgets what was handed in: it was for nothing.
  void forget_gradients();
  // [C] Brings what is bound of masters into its tiles, unless it is there.
  Result<> keep_bound();
  // [C] What a walk through all weights says of itself, once its counters are taken.
  Result<> ended_well(const Flow::Ended& ended);
  Result<> can_install() const;
  // [C] Hands out all weights.
  Result<> install();
  // Makes the manifest of the present step, on any thread: of what later steps do not change.
  libswap::Snapshots::MakeManifest manifest() const;
  Result<bool> begin_snapshot();
  Result<std::uint64_t> wait_for_snapshot();
  EngineStats all_stats() const;

  // recovery.cpp
  Result<> not_stopped() const;
  Result<> not_stopped_in_a_step() const;
  Result<> can_go_on() const;
  Result<StepResult> go_on();
  Result<> roll_back();
  Result<> can_save_to(const libswap::SwapDirectory& other) const;
  bool can_cut() const;  // the present state can be a generation

  // A step that is begun.
  struct UnderWay {
    bool in_flight = false;  // behind the caller
    StepResult result;       // if it ends whole
    Flow::Clock::time_point began;
    const char* name = "step";  // in the trace
  };

  // Constant after construction, each before those that borrow it; Setup says what of it is not.
  Setup setup;
  std::unique_ptr<Computing> computing;

  // Published to a step's threads by Flow::begin(), and back by Flow::wait().
  StepCount steps;
  libswap::StateHome home;
  Weights weights;

  // Synchronise themselves; a step's run says of its calls who makes them.
  std::unique_ptr<Gradients> gradients;
  std::unique_ptr<StepRun> run;
  Entry entry;
  Fate fate;

  // Guarded by ending: whoever ends a step.
  mutable libswap::Mutex ending;
  UnderWay under_way EBB_GUARDED_BY(ending);
  std::optional<Result<StepResult>> outcome EBB_GUARDED_BY(ending);  // of the last that ended
  EngineStats stats EBB_GUARDED_BY(ending);                          // without what the home counts
};

}  // namespace ebb::libmuon
