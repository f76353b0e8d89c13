// Engine: a trainer's optimizer as one object per rank. Gradients in, one Muon/AdamW step on state
// that is paged between memory and the store, weights out; snapshots of the store while training
// goes on.
//
// Threading: one thread per engine drives it; a call beside another one is refused (Code::state)
// and changes nothing. Calls marked [C] are collective: all ranks, same order. A step: check
// (finite, exact norm, agree), then, behind the caller, chunk beside chunk: gradients to owners |
// local sweep | weights out. Nothing is written before all ranks agreed that the gradient can be
// stepped.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/libmuon/comm/communicator.h"
#include "ebb/libmuon/kernels/table.h"
#include "ebb/libmuon/plan/state_plan.h"
#include "ebb/libmuon/step/pinned_checkpoint.h"
#include "ebb/libswap/pager/tile_cache.h"
#include "ebb/libswap/pool.h"
#include "ebb/libswap/store/store_set.h"
#include "ebb/libswap/trace.h"

namespace ebb::libmuon {

// The memory of an accelerator's device, or the host's; without an accelerator both are the host's.
enum class Side : std::uint8_t { host, device };

// What becomes of the sums that a step has made for its norm, of HandIn::partial: they are made
// again for the update, chunk by chunk, or kept until then: an fp32 copy of all gradients of what
// this rank keeps the state of.
enum class PartialSums : std::uint8_t { made_twice, kept };

// What Engine::open does where the store or checkpoint holds state of parameters that the model has
// not: refuses, as torch's strict loading does, or goes on without that state.
enum class DroppedState : std::uint8_t { refused, allowed };

struct EngineConfig {
  ModelSpec model;
  PartitionSpec partition;
  // All that this rank's engine allocates and that grows with the model: frames, resident tiles,
  // updates, Newton-Schulz scratch, gradients and weights on their way.
  std::uint64_t budget_bytes = 0;
  std::uint64_t tile_bytes = 4u << 20;
  // Of gradients and new weights that a rank stages for one chunk of a step; the same on all ranks.
  std::uint64_t chunk_bytes = 256u << 20;
  // Room beside that for gradients of a step's last chunks, which travel as soon as they are handed
  // in on all ranks (gradient_ready()); part of the budget, the same on all ranks. None of
  // HandIn::partial.
  std::uint64_t early_gradient_bytes = 0;
  PartialSums partial_sums = PartialSums::made_twice;  // the same on all ranks
  // Updates of matrices that take more than so many bytes, 4 an element, are never whole in memory:
  // a step passes over their momentum three times, and once more for each restart, and as often
  // comes their gradient, for the same bits. Wide ones come in strips of columns, each in passes of
  // its own, over their masters too: two strips take so many bytes, or what eight strips need. For
  // matrices in Gram form that are not square, Placement::owner and the host's kernels; what cannot
  // be streamed stays whole (EnginePlan::streamed_matrices). The same on all ranks.
  std::uint64_t stream_above_bytes = kNothingStreamed;
  std::uint32_t slots = 3;
  std::uint32_t threads = 1;        // that compute, this rank
  libswap::Trace* trace = nullptr;  // borrowed

  // What computes; null: the host. Borrowed. A new store measures it where products have two ways
  // to be made (Accelerator::measure), origin() says what went wrong then, and the store keeps the
  // choice.
  Accelerator* accelerator = nullptr;
  // Where the trainer keeps all of its gradients, and all of its weights.
  Side gradients_on = Side::host, weights_on = Side::host;
  // Of its memory: updates, Newton-Schulz scratch, tiles on their way, tiles at home there; and, as
  // the communicator takes such memory, gradients and weights on their way.
  std::uint64_t device_budget_bytes = ~std::uint64_t{0};
  // Where a state is at home, by its name (state_names()); what is not named, or is left to be, is
  // in the host's memory as far as the budget goes. AdamW's three lie together: they follow exp_avg
  // and exp_avg_sq, and master is that of matrices. Without an accelerator its memory is the
  // host's.
  std::map<std::string, libswap::Tier, std::less<>> tiers;

  // How the host multiplies where a group says `precision = bf16`; nullopt: as the store says that
  // is resumed or transferred, else as rank 0 measures once (origin() says it, the store keeps it).
  // Bits depend on it. Code::unsupported for real products that some rank's processor has not. The
  // same on all ranks.
  std::optional<Bf16> bf16;

  // What a state is kept as, by its name; what is not named is fp32. momentum_buffer may be bf16: a
  // quarter of a matrix' state less, or i8, in blocks of 256 with a scale each: three eighths less;
  // rounded once a step (docs/numerics.md has the errors). master may be u16, where all weights are
  // bf16 and the host computes: the low half of fp32, whose high half is the weight that is bound;
  // two bytes of a parameter less, with the bits of masters in fp32. The bound weights are state
  // then: whoever writes them is found out by the next step(), and refused. The same on all ranks.
  StateDTypes dtypes;

  // A store that is transferred is replaced: what is dropped is gone then. The same on all ranks.
  DroppedState dropped = DroppedState::refused;
};

// Elements [range.first, + count) of a parameter's fp32 initial weights, the same on every rank.
// Called from one thread at a time, not always the one that opens the engine.
using InitialWeights =
    std::function<void(std::uint32_t param, FlatRange range, std::span<float> into)>;

// What the engine will take and move, known before anything is allocated; bytes of this rank.
struct EnginePlan {
  std::uint64_t state_bytes = 0;  // all that steps page
  std::uint64_t tiles = 0;
  libswap::TileBudget split;
  std::uint64_t memory_bytes = 0;  // all of the following: within the budget
  std::uint64_t frame_bytes = 0;   // frames + resident tiles
  // U and O of two matrices, Newton-Schulz scratch; in Placement::shard U and O of a chunk: this
  // rank's parts, and whole matrices that it computes.
  std::uint64_t workspace_bytes = 0;
  std::uint64_t device_bytes = 0;       // of an accelerator, beside memory_bytes
  std::uint64_t chunks = 0;             // of a step
  std::uint64_t early_chunks = 0;       // of these: whose gradients may travel before it
  std::uint64_t streamed_matrices = 0;  // of this rank's: never whole in its memory
  // Gradients and weights on their way through the host: three parts of the size of a chunk's,
  // early ones', kept sums and AdamW ranges whole; parts of sums on their way; what the
  // communicator does not take from the device.
  std::uint64_t staging_bytes = 0;
  std::uint64_t gradient_sum_bytes = 0;  // of HandIn::added; where the gradients lie
  std::uint64_t least_budget_bytes = 0;  // of this model and chunk size
  std::uint64_t disk_bytes = 0;  // reserved in the store; a new one is written once, with zeros
  std::uint64_t step_read_bytes = 0, step_written_bytes = 0, step_sent_bytes = 0;
  std::uint64_t install_read_bytes = 0;  // of install_weights()
  // Of snapshot() itself, where masters are in halves: their high ones, to their owners and disks.
  std::uint64_t snapshot_written_bytes = 0, snapshot_sent_bytes = 0;
  double newton_schulz_flops = 0;  // of one step
  std::uint64_t adam_elems = 0;
  double padding_ratio =
      0;  // of the trainer's gradient buffers, all ranks: padding over parameters
};

struct StepArgs {
  double inv_scale = 1;  // gradients are multiplied by this; above zero
  double max_norm = 0;   // 0: no clipping
};
struct StepResult {
  // A gradient was not finite on some rank, or so large, scaled and clipped, that state could
  // overflow (largest_gradient in kernels.h). No bit of state moved on any rank.
  bool skipped = false;
  double norm = 0;  // of the whole unscaled gradient, exact, before clipping; NaN if not finite
  double clip = 1;
};
// Of all steps, and what the pager counted meanwhile.
struct EngineStats : libswap::PagerStats {
  std::uint64_t steps = 0, sent_bytes = 0;
  std::optional<Bf16> bf16;  // how it multiplies as bf16; null: nothing, on the host
  double step_s = 0, compute_s = 0;
  double exchange_s = 0;                // gradients and weights on their way
  double exposed_exchange_s = 0;        // of that, inside a step with no sweep of this rank beside
  double snapshot_s = 0;                // the caller's thread inside snapshot()
  std::uint64_t snapshots_put_off = 0;  // another process read the store: no slot was left
  libswap::PoolStats pool;
};
// Those of the pager and the pool among them (libswap/stats.h writes them).
std::vector<libswap::Stat> stats_of(const EngineStats& stats);

class Engine {
 public:
  // Predicts; allocates nothing. Fails where open or a step would, on any rank: a budget or tile
  // that does not do, unknown layouts. `wire`: the device's where the communicator takes() it.
  static Result<EnginePlan> plan(const EngineConfig& config, Rank rank, Side wire = Side::host);

  // [C] `ranks` is duplicated: what is in flight uses the duplicate, calls marked [C] both. The
  // state comes from, in this order: the directory's current store (any world size, layout or tile
  // size: if they differ it is transferred into a new store), `checkpoint` if given (any format
  // that describes), `initial` otherwise. Parameters that a store or checkpoint has not, or has
  // without the state of their optimizer, begin anew; origin() names them. Those that it has too
  // many are refused (Code::layout names them) unless EngineConfig::dropped allows it, and named in
  // origin() then. After an error the directory's store is as it was. The directory and the queue
  // outlive the engine.
  static Result<std::unique_ptr<Engine>> open(const EngineConfig& config, Communicator& ranks,
                                              libswap::IoQueue& io,
                                              libswap::SwapDirectory& directory,
                                              const InitialWeights& initial,
                                              const Checkpoint* checkpoint);
  ~Engine();  // waits for I/O; uncommitted steps are lost, committed generations are not

  std::uint64_t step_count() const;
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
  // committed there. A stopped step goes on there with continue_step(), and the next snapshot
  // commits it. After an error of copying, the engine is where it was.
  Result<> save_to(libswap::SwapDirectory& other);

  // What the trainer wants back after a resume (data position, RNG): stored with every generation.
  Result<> set_blob(std::string key, ByteVector bytes);
  const ByteVector* blob(std::string_view key) const;

  // [C] Marks the present state as a generation and returns, at once but for the high halves of
  // masters (snapshot_written_bytes); false: one is still under way, or pinned ones leave no room.
  // Durable behind the next steps, committed at a later step() or wait_snapshot(). One that some
  // rank could not write is abandoned, training goes on: snapshot_error() says why. After a failed
  // fsync none can be committed: Code::state from every step(), snapshot() and wait_snapshot().
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
