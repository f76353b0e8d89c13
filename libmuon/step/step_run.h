// StepRun: a step under way, or a walk through all weights: its chunks, on the two threads of Flow.
//
// Owns these threads, the communicator that they meet on (a duplicate of the trainer's), what
// travels and the sweep; borrows all that make() is given.
// Threading: the public calls are for one thread at a time, that which drives the engine or ends
// the step in flight. The private ones say on which thread of Flow they run: [M], where the ranks
// meet, collective; [S], where this rank sweeps.
#pragma once

#include <functional>
#include <memory>

#include "ebb/libmuon/step/chunk_exchange.h"
#include "ebb/libmuon/step/engine_stats.h"
#include "ebb/libmuon/step/flow.h"
#include "ebb/libmuon/step/sweep.h"

namespace ebb::libmuon {

class StepRun {
 public:
  // Allocates the rooms of what travels.
  static Result<std::unique_ptr<StepRun>> make(const Setup& setup, const Computing& computing,
                                               const Gradients& gradients, Weights& weights,
                                               const StepCount& steps);
  // [C] Duplicates the communicator and starts the threads; once, before all that follows.
  Result<> start();

  // Opens the sweep of the state in `cache`, until close_sweep(). REQUIRES: Computing has chosen.
  Result<> open_sweep(libswap::TileCache& cache);
  void close_sweep() { sweep_.reset(); }
  bool has_sweep() const { return sweep_ != nullptr; }
  Sweep& sweep() const { return *sweep_; }
  // Tells the kernels that make O of U how to multiply (Kernels::choose).
  void choose(std::uint32_t choice);

  Flow& flow() const { return *flow_; }
  // Begins a step: gradients count `grad_scale` times. wait() says how it ended.
  void begin(float grad_scale);
  // Goes on with a step that was stopped.
  void go_on();
  Flow::Ended wait() { return flow_->wait(); }
  bool ends_within(std::chrono::milliseconds limit) { return flow_->ends_within(limit); }
  // Drops U and O of a step that is abandoned.
  void forget_updates();

  // [C] Walks through all chunks, to the end. `of`: of these parameters; empty: of all.
  Result<Look> look_at_sums();  // adds parts of gradients up (HandIn::partial), for their norm
  Flow::Ended keep_bound(const Travels& of);    // brings what is bound of masters into its tiles
  Flow::Ended take_weights(const Travels& of);  // masters take bound weights (Sweep::take)
  Flow::Ended hand_out_weights();               // all of them, of the present state
  // The same, portion by portion: states to the trainer, or from it.
  Flow::Ended read_states(const NamedStates& states);
  Flow::Ended write_states(const NamedStates& states);
  std::uint64_t portion_bytes() const { return exchange_->portion_bytes(); }

  // Takes what was counted since the last call.
  EngineStats take_counted();

 private:
  StepRun(const Setup& setup, const Computing& computing, const Gradients& gradients,
          const StepCount& steps, std::unique_ptr<ChunkExchange> exchange);

  // [M]
  Result<> bring_in(std::size_t chunk);
  Result<> weights_in(std::size_t chunk, ChunkExchange::As as, const Travels& travels);
  Result<> gradients_in(std::size_t chunk);
  Result<> gradients_in_early(std::size_t piece);
  Result<> sums_in_again(std::size_t chunk);
  Result<> results_in(std::size_t chunk);
  Result<> gather_updates(std::size_t chunk);
  Result<> weights_out(std::size_t chunk, const Travels& travels);
  using Run = std::function<Result<std::uint64_t>()>;
  Result<double> travel(const char* what, const Run& run);  // seconds
  Result<> travel_in_step(const char* what, const Run& run);

  // [S]
  bool turn_to(std::size_t chunk);  // false: come to rest
  Result<> sweep_chunk(std::size_t chunk);

  // Walks through work.chunks chunks; `work` lacks the sweep, which is `through`, and what nothing
  // is done in. The sweep calls begin() of each chunk that it turns to, if that is there.
  using Walk = std::function<Result<>(const Sweep::Between& between)>;
  using Begin = std::function<void(std::size_t chunk)>;
  Flow::Ended walk(const Walk& through, const Begin& begin, Flow::Work work);

  // Constant after start().
  const Setup& setup_;
  const Computing& computing_;
  std::unique_ptr<Communicator> ranks_;  // of the thread that meets

  // Synchronise themselves.
  const Gradients& gradients_;

  // Published by Flow::begin() and Flow::wait().
  const StepCount& steps_;
  const std::unique_ptr<ChunkExchange> exchange_;
  std::unique_ptr<Sweep> sweep_;  // of the thread that sweeps, in a step

  // Guarded by mutex_.
  libswap::Mutex mutex_;
  EngineStats counted_ EBB_GUARDED_BY(mutex_);

  // Synchronises itself; uses all of the above and ends first.
  std::unique_ptr<Flow> flow_;
};

}  // namespace ebb::libmuon
