// Private to libmuon/step: the parts of an Engine and who calls whom.
//   engine.cpp        planning, small calls          open.cpp      create, resume, transfer, load
//   step.cpp          what is decided before a step  chunk.cpp     gradients in, sweep, weights out
//   flow.cpp          the threads of a step          sweep.cpp     the state's tiles
//   early.cpp         gradients that come before it  absent_gradients.cpp  that do not come at all
//   handing_in.cpp    what the trainer hands over  gradient_sums.cpp  over its micro-batches
//   reduction.cpp     parts of gradients added up  partial.cpp        in a step
//   stopped.cpp       going on with, or back from, a step that an I/O error cut
//   high_halves.cpp   where masters are in halves: the weights come back
//   snapshot.cpp      cut, background prepare, agreement
//   staging.cpp       room for a chunk             exchange.cpp  a chunk's gradients and weights
//   places.cpp        which range lies where in such room
//   wire.cpp          messages through memory that the communicator takes
//   updates.cpp       U and O on their way between shards and who computes them
//   homes.cpp         where which tile is at home
//   scattered_store.cpp   a store that no rank reaches whole, as one tree of files
//   save_to.cpp       to another disk
//   settings.cpp      what all ranks must be told alike  group_settings.cpp  by name
//   stored_state.cpp  what of the model a store or checkpoint holds
//   continuity.cpp    what stored state was trained with
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ebb/libmuon/step/computing.h"
#include "ebb/libmuon/step/engine.h"
#include "ebb/libmuon/step/entry.h"
#include "ebb/libmuon/step/flow.h"
#include "ebb/libmuon/step/gradients.h"
#include "ebb/libmuon/step/handed_out.h"
#include "ebb/libmuon/step/setup.h"
#include "ebb/libmuon/step/staging.h"
#include "ebb/libmuon/step/stored_state.h"
#include "ebb/libmuon/step/sweep.h"
#include "ebb/libmuon/step/updates.h"
#include "ebb/libswap/pager/snapshots.h"
#include "ebb/libswap/store/blobs.h"

namespace ebb::libmuon {

class ScatteredStore;

struct Engine::Impl {
  Impl(const EngineConfig& engine_config, Communicator& communicator, libswap::IoQueue& queue,
       libswap::SwapDirectory& swap_directory, Prepared prepared);

  // engine.cpp
  Result<> make_room();
  // [C] Computing::choose(), for all that computes.
  Result<> choose_products(std::string_view kept);

  // open.cpp
  Result<> attach(const InitialWeights& initial, const Checkpoint* checkpoint);
  // False: the store holds its state in other places than the plan's; it is to be transferred.
  Result<bool> resume(const libswap::SwapDirectory::Entry& current);
  Result<> take_over(const formats::native::Manifest& manifest);
  Result<bool> has_own_folder(const std::optional<libswap::SwapDirectory::Entry>& current) const;
  // [C] Long work of this rank, which may read what others reach of the store it begins from.
  Result<> work(ScatteredStore* from, std::string_view doing,
                const std::function<Result<>()>& mine);
  // What a new store is filled with.
  struct Beginning {
    const InitialWeights& initial;
    const Checkpoint* checkpoint = nullptr;
    ScatteredStore* scattered = nullptr;
    std::vector<Held> held;  // of the checkpoint, by parameter
  };
  Result<> begin_from(Beginning& from);
  Result<> make_and_fill(const libswap::SwapDirectory::Entry& fresh,
                         const formats::native::Uuid& parent, const Beginning& from);
  Result<std::shared_ptr<libswap::Store>> make_store(const libswap::SwapDirectory& in,
                                                     const libswap::SwapDirectory::Entry& fresh,
                                                     const formats::native::Uuid& parent);
  Result<> open_sweep();
  void note(const std::string& text);
  Result<> fill_from(const InitialWeights& initial);
  Result<> fill_from_checkpoint(const Beginning& from);
  Result<> agree_all(const Result<>& mine, std::string_view doing);

  // handing_in.cpp
  // Ends the step in flight, if one is: a gradient is the next step's. Any thread that hands in.
  Result<> may_hand_in();
  // Those of this step were for nothing.
  void forget_gradients();

  // step.cpp, chunk.cpp
  Result<> check_ready(const StepArgs& args) const;
  Result<> agree_on_absent();
  Result<StepResult> check_step(const StepArgs& args);
  // partial.cpp
  bool partial() const { return config.partition.hand_in == HandIn::partial; }
  Result<> sum_parts(std::size_t chunk);
  std::vector<LookRange> sums_of(std::size_t chunk);
  Result<Look> look_at_sums();
  void begin_update(float grad_scale);
  // Ends the step in flight, if one is: `step_outcome` is how.
  void end_step();
  void fly();  // a step is in flight from here on
  Result<StepResult> outcome_of(const Flow::Ended& ended);
  // [C] Of a chunk, on the flow's meeting thread.
  Result<> gradients_in(std::size_t chunk);
  Result<> gradients_in_early(std::size_t piece);
  Result<> updates_together(std::size_t chunk);
  Result<> results_in(std::size_t chunk);
  Result<> weights_out(std::size_t chunk, const Travels& travels);
  // Of some parameter, which no later call can do again.
  bool hands_out_updates() const;
  // Where weights, or updates, were not handed out to all ranks.
  std::string way_back() const;
  Result<> can_install() const;
  // How many bytes were sent.
  Result<std::uint64_t> bring_gradients(const Exchange& exchange, std::span<const Transit> transits,
                                        std::size_t chunk, const Travels& travels);
  // In a step: what has a gradient, and what takes part.
  Travels with_gradients() const {
    return [this](std::uint32_t param) { return gradients->absent().has_gradient(param); };
  }
  Travels touched() const {
    return [this](std::uint32_t param) { return !gradients->absent().untouched(param); };
  }
  using Run = std::function<Result<std::uint64_t>()>;
  Result<double> travel(const char* what, const Run& run);  // seconds
  Result<> travel_in_step(const char* what, const Run& run);
  // On its sweeping thread. False: come to rest.
  bool turn_to(std::size_t chunk);
  Result<> sweep_chunk(std::size_t chunk);
  // Of a range that this rank owns: the staged copy, or its part of the trainer's buffer.
  libswap::Buffer own_gradient(const Transit& transit, std::size_t chunk);
  libswap::Buffer own_weight(const Transit& transit, std::size_t chunk);
  void take_over_beside();
  Result<> install();

  // high_halves.cpp
  bool in_halves() const { return parts.plan.columns().in_halves(); }
  libswap::Buffer bound_weight(const Transit& transit) const;
  // Of a range that this rank owns: the copy that came, or its part of the trainer's buffer.
  libswap::Buffer own_high(const Transit& transit, std::size_t chunk);
  // [C] Of a chunk, on the flow's meeting thread. Nothing where masters are whole, as the next.
  Result<> highs_in(std::size_t chunk, const Travels& travels);
  // That they are what was handed out.
  Result<> highs_unchanged() const;
  // [C] Their tiles hold those of the present step.
  Result<> keep_highs();
  // [C] Through all weights, by the chunks of a step.
  using Walk = std::function<Result<>(const Sweep::Between& between)>;
  Flow::Ended walk(const Walk& through, Flow::Work work);

  // stopped.cpp
  Result<> not_stopped() const;
  Result<StepResult> go_on();
  Result<> go_back();

  // save_to.cpp
  Result<> can_save_to(const libswap::SwapDirectory& other) const;
  Result<> move_to(libswap::SwapDirectory& other);
  EngineStats all_stats() const;

  // snapshot.cpp
  void watch_snapshots();
  Result<> settle_snapshot(libswap::Snapshots::Mode mode);
  // [C] A new store's first generation makes it its directory's.
  Result<> adopt_if_due();
  // Of the present step; made of what later steps do not change, on any thread.
  libswap::Snapshots::MakeManifest manifest() const;
  Result<bool> begin_snapshot();
  Result<std::uint64_t> wait_for_snapshot();

  Setup setup;
  EngineConfig& config{setup.config};
  Communicator& ranks{setup.ranks};
  libswap::IoQueue& io{setup.io};
  const Prepared& parts{setup.prepared};
  const Routes& routes{setup.routes};
  libswap::SwapDirectory* directory;  // of the present store
  const std::optional<Reductions> reductions;
  std::unique_ptr<Computing> computing;

  std::unique_ptr<Updates> updates;  // in Placement::shard

  std::shared_ptr<libswap::Store> store;  // shared with exports
  std::unique_ptr<Sweep> sweep;
  std::filesystem::path store_path;
  std::string origin;
  std::string notes;  // on what was resumed or loaded, for `origin`

  StepCount steps;
  Entry entry;
  std::unique_ptr<Gradients> gradients;
  std::vector<libswap::Buffer> weights;  // per parameter, as bound
  std::vector<bool> bound;
  std::vector<std::size_t> last_chunk;      // per parameter: that hands out weights of it
  std::optional<HandedOut> handed_out;      // where masters are in halves
  std::optional<std::uint64_t> highs_kept;  // the step of which their tiles are
  std::optional<Staging> staging;           // what the trainer's buffers hold lies nowhere else
  libswap::DeviceMemory bounce;             // of the wire
  libswap::DeviceMemory part_room;          // of parts on their way
  libswap::Blobs blobs;
  std::optional<Error> broken;                    // ranks could not agree whether to go on: reopen
  std::optional<Error> stopped;                   // a step was cut on some rank by an I/O error
  std::optional<Error> weights_owed;              // a step's weights were not handed out to all
  libswap::Mutex ending;                          // of a step: whoever hands in ends it
  bool in_flight EBB_GUARDED_BY(ending) = false;  // a step, behind the caller
  StepResult running;                             // of that step
  Flow::Clock::time_point step_began;
  const char* step_name = "step";                  // in the trace
  std::optional<Result<StepResult>> step_outcome;  // of the last step that ended
  std::optional<libswap::Snapshots> snapshots;     // of the sweep's cache and the present store
  bool adopt_due = false;  // the store's first generation makes it its directory's
  std::uint64_t resumed_step = 0;
  EngineStats stats;  // without those of the present sweep's cache
  // What the flow's threads have added since.
  libswap::Mutex beside_mutex;
  EngineStats beside EBB_GUARDED_BY(beside_mutex);
  std::unique_ptr<Communicator> flow_ranks;
  std::optional<Wire> wire;    // over those
  std::unique_ptr<Flow> flow;  // uses all of the above: ends first
};

}  // namespace ebb::libmuon
