// EngineConfig: what an engine is opened with. EnginePlan: what follows from it, known before
// anything is allocated. Values; no threads, owns nothing that it points to.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "ebb/libmuon/kernels/table.h"
#include "ebb/libmuon/plan/state_plan.h"
#include "ebb/libswap/pager/budget.h"
#include "ebb/libswap/trace.h"

namespace ebb::libmuon {

// The memory of an accelerator's device, or the host's; without an accelerator both are the host's.
enum class Side : std::uint8_t { host, device };

// What becomes of the sums that a step has made for its norm, of HandIn::partial: those of matrices
// are made again for the update, chunk by chunk, but of chunks that may come early; or all are kept
// until then, an fp32 copy of all gradients of what this rank keeps the state of.
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
  // in on all ranks (gradient_ready()); part of the budget, the same on all ranks. Of
  // HandIn::partial it is their sums that come.
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
  // bf16 and lie on the host: the low half of fp32, whose high half is the weight that is bound;
  // two bytes of a parameter less, with the bits of masters in fp32. The bound weights are state
  // then: whoever writes them is found out by the next step(), and refused. master may be nullopt,
  // where all weights are fp32: the weights that are bound are the masters, four bytes of a
  // parameter less, with the same bits. What the trainer writes to them between two steps counts;
  // while a step is under way it must write nothing. The same on all ranks.
  StateDTypes dtypes;

  // A store that is transferred is replaced: what is dropped is gone then. The same on all ranks.
  DroppedState dropped = DroppedState::refused;
};

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
  // Beside memory_bytes, at most, where ranks are processes: kMostRanksBytes; of one rank: none.
  std::uint64_t ranks_bytes = 0;
  std::uint64_t least_budget_bytes = 0;  // of this model and chunk size
  std::uint64_t disk_bytes = 0;  // reserved in the store; a new one is written once, with zeros
  std::uint64_t step_read_bytes = 0, step_written_bytes = 0, step_sent_bytes = 0;
  std::uint64_t install_read_bytes = 0;  // of install_weights()
  // Of snapshot() itself, where masters are bound: these, or their high halves, to their owners and
  // disks.
  std::uint64_t snapshot_written_bytes = 0, snapshot_sent_bytes = 0;
  double newton_schulz_flops = 0;  // of one step
  std::uint64_t adam_elems = 0;
  double padding_ratio =
      0;  // of the trainer's gradient buffers, all ranks: padding over parameters
};

}  // namespace ebb::libmuon
