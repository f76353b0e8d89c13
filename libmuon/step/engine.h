// Engine: a trainer's optimizer as one object per rank. Gradients in, one Muon/AdamW step on state
// that is paged between memory and the store, weights out; snapshots of the store while training
// goes on.
//
// Threading: one thread per engine drives it; a call beside another one is refused (Code::state)
// and changes nothing. Calls marked [C] are collective: all ranks, same order. A step: check
// (finite, exact norm, agree), then, behind the caller, chunk beside chunk: gradients to owners |
// local sweep | weights out. Nothing is written before all ranks agreed that the gradient can be
// stepped.
//
// Processes: an engine is that of the process that opened it. In a child made by fork(), such as a
// data loader's worker, calls that answer a Result answer Code::state, committed_generation() and
// stats() zeros; nothing waits, and destroying it there changes nothing for its parent.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "ebb/libmuon/comm/communicator.h"
#include "ebb/libmuon/step/config.h"
#include "ebb/libmuon/step/engine_stats.h"
#include "ebb/libmuon/step/pinned_checkpoint.h"
#include "ebb/libmuon/step/start.h"
#include "ebb/libmuon/step/state_buffer.h"
#include "ebb/libmuon/step/step_args.h"
#include "ebb/libswap/store/store_set.h"

namespace ebb::libmuon {

class Engine {
 public:
  // Predicts; allocates nothing. Fails where open or a step would, on any rank: a budget or tile
  // that does not do, unknown layouts. `wire`: the device's where the communicator takes() it.
  static Result<EnginePlan> plan(const EngineConfig& config, Rank rank, Side wire = Side::host);

  // [C] `ranks` is duplicated: what is in flight uses the duplicate, calls marked [C] both. The
  // state is the directory's current store's (of any world size, layout or tile size: if they
  // differ it is transferred into a new store), or begins from what is given, as `start` says.
  // Parameters that a store or checkpoint has not, or has without the state of their optimizer,
  // begin anew; origin() names them. Those that it has too many are refused (Code::layout names
  // them) unless EngineConfig::dropped allows it, and named in origin() then. After an error the
  // directory's store is as it was, but where `start` says that it goes first. The directory and
  // the queue outlive the engine.
  static Result<std::unique_ptr<Engine>> open(const EngineConfig& config, Communicator& ranks,
                                              libswap::IoQueue& io,
                                              libswap::SwapDirectory& directory,
                                              const Start& start);
  ~Engine();  // waits for I/O; uncommitted steps are lost, committed generations are not

  std::uint64_t step_count() const;
  // Of a parameter: one that a step left untouched has not taken it.
  std::uint64_t steps_taken(std::uint32_t param) const;
  const StatePlan& state_plan() const;
  // "created", "resumed the store at step 12", "transferred from 4 ranks at step 12", ...
  const std::string& origin() const;

  // Where new weights go, or updates (Out::update: only a step that is whole hands them out), in
  // the weights layout's pieces, as ParamSpec::weight says; borrowed until destroy. Code::usage for
  // elements of another type, or for memory that is not EngineConfig::weights_on.
  Result<> bind_weights(std::uint32_t param, libswap::Buffer my_pieces);
  Result<> bind_weights(std::uint32_t param, std::span<float> my_pieces) {
    return bind_weights(param, libswap::buffer_of(my_pieces));
  }
  // [C] Fills the bound weights from the state: after open, before the first forward. Where groups
  // hand out updates, nothing is put there.
  Result<> install_weights();
  // [C] Takes what the trainer wrote to bound weights into their masters, of these parameters, the
  // same ones on all ranks: a master becomes its weight where that is not the master rounded, and
  // stays as it is elsewhere; moments stay. Where masters are in halves, those of a parameter of
  // which some weight is not what was handed out are the weights: their low halves become 0. Copies
  // of a weight must be alike: the lowest counts. Waits for a snapshot that is being written; the
  // next one has what was taken.
  // Code::usage, before anything changes, for weights that are not finite or not bound, and for
  // parameters with Out::update. After an I/O error some masters have taken their weights: nothing
  // but take_weights(), of what was named then and now, abandon_step(), save_to(), stats() and the
  // destructor is answered (Code::state) before one of the first two worked.
  Result<> take_weights(std::span<const std::uint32_t> params);

  // [C] Copies a state of these parameters, each rank what it holds of them as weights
  // (StateBuffer), from wherever it lies: "master", "momentum_buffer", "exp_avg" or "exp_avg_sq";
  // the same parameters on all ranks. Between steps, in portions within the budget. Code::usage for
  // a parameter that has no such state; Code::unsupported for what is kept in int8 blocks. Masters
  // in halves are joined: Code::state for weights that somebody else wrote to, as before a step.
  Result<> read_state(std::string_view state, std::span<const StateBuffer> into);
  // [C] Several of the same parameters: what holds more than one of them is read once.
  Result<> read_states(std::span<const StateBuffers> into);
  // [C] The other way, rounded to what the state is kept as; `taken`: how many steps these
  // parameters have taken then, which AdamW's bias correction counts. Masters that are written are
  // handed out by install_weights(). After an I/O error a part was written: nothing but
  // abandon_step(), stats() and the destructor is answered (Code::state) before that went back.
  // Bound weights that are masters, or high halves of them, are written, too, each rank's from what
  // it gave, so that copies must be alike. Code::unsupported for halves of what is not finite.
  Result<> write_state(std::string_view state, std::span<const StateBuffer> from,
                       std::optional<std::uint64_t> taken = {});
  // [C] Several of the same parameters.
  Result<> write_states(std::span<const StateBuffers> from,
                        std::optional<std::uint64_t> taken = {});

  // A step is in flight from begin_step() on, until wait_step() or another call: set_...,
  // snapshot(), all that are about steps, and the destructor wait for its end first.

  // The gradient of a parameter, which nobody changes any more: in the gradients layout's pieces,
  // as ParamSpec::gradient says, borrowed until the step is done, never written. Once a step and
  // parameter: Code::state for a second one. Code::usage for elements of another type, or for
  // memory that is not EngineConfig::gradients_on. Any thread, in any order, also several at once,
  // but not beside calls other than weights_ready(). Waits for no other rank, unless a step is in
  // flight.
  //
  // Behind `ready` the gradient is there, and nobody reads the parameter's weights any more: the
  // engine waits for it.
  Result<> gradient_ready(std::uint32_t param, libswap::Buffer my_pieces,
                          libswap::Event ready = {});
  Result<> gradient_ready(std::uint32_t param, std::span<const float> my_pieces) {
    return gradient_ready(param, libswap::buffer_of(my_pieces));
  }
  // One of a step's several gradients of a parameter, where HandIn::added says so (Code::usage
  // elsewhere): as gradient_ready(), which may take the last one and makes the sum ready. Sums that
  // nobody made ready are when the step begins. `my_pieces` are borrowed until the event passes.
  Result<libswap::Event> add_gradient(std::uint32_t param, libswap::Buffer my_pieces,
                                      const libswap::Event& ready = {});
  Result<libswap::Event> add_gradient(std::uint32_t param, std::span<const float> my_pieces) {
    return add_gradient(param, libswap::buffer_of(my_pieces));
  }
  // Instead of a gradient: the parameter has none in this step, as all ranks that hold it must say
  // alike (Code::usage names the parameter and who says what, all that was handed in is forgotten
  // then, and nothing has changed). Nothing of it travels in or counts in the norm; what is
  // untouched is not computed, and does not travel out, either: where its weights are bound they
  // lie since install_weights() or an earlier step. As gradient_ready() otherwise.
  Result<> no_gradient(std::uint32_t param, WithoutGradient how);
  // A group's optimizer and all of its settings, as a store names them ("lr", "beta", ...).
  Result<formats::native::Group> group(std::uint32_t group) const;
  // lr, weight_decay, beta, beta1, beta2 or eps from the next step on; the same on all ranks.
  // Code::usage for a name that is none of the group's, saying whose it is, or for a value outside
  // of its range; Code::unsupported for what cannot change while an engine is open.
  Result<> set(std::uint32_t group, std::string_view name, double value);
  Result<> set_learning_rate(std::uint32_t group, double lr);
  // [C] Every bound parameter needs a gradient, or that it has none to be said (Code::usage names
  // the first of which neither is), and all ranks the same arguments and learning rates
  // (Code::usage names what differs). After an error before the state moved, the same gradients can
  // be stepped again. Where the new weights could not be handed out, Code::state until
  // install_weights() has done that; where updates are (Out::update), until abandon_step() went
  // back.
  //
  // An I/O error in the middle of it, on any rank, stops the step on all: state and gradients stay
  // where they are, the error says what to mend, and nothing but continue_step(), abandon_step(),
  // save_to(), stats() and the destructor is answered (Code::state) before one of them worked.
  Result<StepResult> step(const StepArgs& args);
  // [C] As step(), in two calls: the first answers what the step will do once all ranks have agreed
  // on its norm, the update goes on behind the caller; the second answers how it ended, as often as
  // it is asked. `ranks` is the trainer's meanwhile.
  Result<StepResult> begin_step(const StepArgs& args);
  Result<StepResult> wait_step();
  // Whether no step is in flight on this rank any more, `limit` from now at the latest: for a
  // caller that has signals to answer before it waits on.
  Result<bool> step_ends_within(std::chrono::milliseconds limit);
  // Waits until the new weights of a parameter lie where they are bound, or for why they do not: of
  // the step that begin_step() answered last. Any thread.
  Result<> weights_ready(std::uint32_t param) const;
  // [C] Goes on with a step that was stopped, where each rank stopped, with the bits of a step that
  // nothing happened to. Its error if it is stopped again. Code::state where no step is stopped.
  Result<StepResult> continue_step();
  // [C] Goes back to the last committed generation, in this process, and installs its weights: the
  // way out of a step that cannot be continued, of a disk that did not keep its promise, or of
  // steps that should not have been. Code::busy while an export holds a generation.
  Result<> abandon_step();

  // [C] Takes the state to another disk, as a new store in `other`, which must hold none and
  // outlives the engine: the way out of a disk that fails, is full, or did not keep its promise.
  // Each tile is checked on its way; the old store stays as it is. Between steps the present one is
  // committed there. A stopped step goes on there with continue_step(), weights that were not taken
  // are, and the next snapshot commits it. After an error of copying, the engine is where it was.
  Result<> save_to(libswap::SwapDirectory& other);

  // What the trainer wants back after a resume (data position, RNG): stored with every generation.
  // No bytes: takes away what was set before.
  Result<> set_blob(std::string key, ByteVector bytes);
  const ByteVector* blob(std::string_view key) const;
  std::vector<std::string> blob_keys() const;

  // [C] Marks the present state as a generation and returns, at once but for masters
  // that are bound (snapshot_written_bytes); false: one is still under way, or pinned ones leave no
  // room. Durable behind the next steps, committed at a later step() or wait_snapshot(). One that
  // some rank could not write is abandoned, training goes on: snapshot_error() says why. After a
  // failed fsync none can be committed: Code::state from every step(), snapshot() and
  // wait_snapshot().
  Result<bool> snapshot();
  // [C] Waits until the last snapshot is committed; its generation number, 0 if there was none. Its
  // error if it was abandoned.
  Result<std::uint64_t> wait_snapshot();
  // Why the last snapshot that was settled was abandoned; nullptr when it was committed.
  const Error* snapshot_error() const;
  std::uint64_t committed_generation() const;
  std::uint64_t committed_step() const;
  // Pins the committed generation on this rank. An export pins on all ranks, and until it is
  // written: each holds its own part.
  Result<PinnedCheckpoint> open_export() const;
  // The folder of this engine's store: what ckpt-inspect reads.
  const std::filesystem::path& store_directory() const;

  EngineStats stats() const;

 private:
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ebb::libmuon
