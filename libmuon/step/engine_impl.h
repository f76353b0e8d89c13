// Private to libmuon/step: the parts of an Engine and who calls whom.
//   engine.cpp        planning, small calls          open.cpp      create, resume, transfer, load
//   step.cpp          what is decided before a step  chunk.cpp     gradients in, sweep, weights out
//   sweep.cpp         the state's tiles
//   stopped.cpp       going on with, or back from, a step that an I/O error cut
//   snapshot.cpp      cut, background prepare, agreement
//   staging.cpp       room for a chunk             exchange.cpp  a chunk's gradients and weights
//   scattered_store.cpp   a store that no rank reaches whole, as one tree of files
//   settings.cpp      what all ranks must be told alike
//   continuity.cpp    what stored state was trained with
#pragma once

#include <atomic>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ebb/libmuon/kernels/kernels.h"
#include "ebb/libmuon/step/engine.h"
#include "ebb/libmuon/step/exchange.h"
#include "ebb/libmuon/step/staging.h"
#include "ebb/libmuon/step/sweep.h"
#include "ebb/libswap/pager/snapshots.h"

namespace ebb::libmuon {

inline constexpr std::uint64_t kMostBlobBytes = 256u << 10;  // of all blobs together
inline constexpr std::uint64_t kBlockBytes = 256u << 10;     // of a checksum
// What a blob takes of that.
constexpr std::uint64_t blob_bytes(std::size_t key, std::size_t bytes) { return key + bytes + 64; }

// What the budget holds beside tiles.
struct Memory {
  std::uint64_t workspace = 0;                           // bytes
  std::uint64_t chunk_gradients = 0, chunk_weights = 0;  // elements staged of the largest chunk
  std::uint64_t gradients = 0, weights = 0;              // bytes of all that is staged
  std::uint64_t total() const { return workspace + gradients + weights; }
};

// Everything that follows from the description alone.
struct Prepared {
  StatePlan plan;
  libswap::TileBudget split;
  Chunks chunks;
  Memory memory;
  libswap::Store::Config store;  // without directory and uuids
};
Result<Prepared> prepare(const EngineConfig& config, Rank rank);
formats::native::Manifest manifest_template(const EngineConfig& config, const StatePlan& plan);

// Where gradients and new weights travel: matrices to and from their owners, chunk by chunk, and
// AdamW ranges to and from their shards, whole.
struct Routes {
  explicit Routes(const StatePlan& plan);
  Exchange gradients_to_owners, weights_from_owners;
  Exchange gradients_to_shards, weights_from_shards;
  std::vector<Transit> adam;
};
class ScatteredStore;

struct Engine::Impl {
  Impl(const EngineConfig& engine_config, Communicator& communicator, libswap::IoQueue& queue,
       libswap::SwapDirectory& swap_directory, Prepared prepared,
       std::unique_ptr<libswap::Pool> computing);

  // open.cpp
  Result<> attach(const InitialWeights& initial, const Checkpoint* checkpoint);
  // False: the store holds its state in other places than the plan's; it is to be transferred.
  Result<bool> resume(const libswap::SwapDirectory::Entry& current);
  Result<> take_over(const formats::native::Manifest& manifest);
  Result<> begin_from(const Checkpoint& checkpoint);
  Result<bool> has_own_folder(const std::optional<libswap::SwapDirectory::Entry>& current) const;
  // [C] Long work of this rank, which may read what others reach of the store it begins from.
  Result<> work(ScatteredStore* from, std::string_view doing,
                const std::function<Result<>()>& mine);
  // What a new store is filled with.
  struct Beginning {
    const InitialWeights& initial;
    const Checkpoint* checkpoint = nullptr;
    ScatteredStore* scattered = nullptr;
  };
  Result<> make_and_fill(const libswap::SwapDirectory::Entry& fresh,
                         const formats::native::Uuid& parent, const Beginning& from);
  Result<> make_store(const libswap::SwapDirectory::Entry& fresh,
                      const formats::native::Uuid& parent);
  Result<> open_sweep();
  void take_blobs(const Catalog& catalog);
  void note(const std::string& text);
  void set_steps(const std::map<std::string, std::int64_t>& taken);
  Result<> fill_from(const InitialWeights& initial);
  Result<> fill_from(const Checkpoint& checkpoint);
  Result<> agree_all(const Result<>& mine, std::string_view doing);

  // step.cpp, chunk.cpp
  Result<> check_ready(const StepArgs& args) const;
  Result<StepResult> check_step(const StepArgs& args);
  Result<> gradients_in(const Exchange& exchange, std::span<const Transit> transits);
  Result<> weights_out(const Exchange& exchange, std::span<const Transit> transits);
  // Gradients of a chunk, on all ranks, and AdamW's with the first.
  Result<> begin_chunk();
  // Weights of a chunk, on all ranks, and AdamW's with the last.
  Result<> end_chunk(std::size_t number);
  // Chunk after chunk; what it answers when it was cut, another call of it can mend.
  Result<StepResult> finish_step();
  Result<> run_chunk();
  Result<> sweep_chunk();
  void hand_out_chunk();
  // Of a range that this rank owns: the gathered copy, or its part of the trainer's buffer.
  std::span<const float> own_gradient(const Transit& transit);
  std::span<float> gathered_gradient(const Transit& transit);  // empty: the trainer's holds it
  std::span<float> own_weight(const Transit& transit);
  Result<> install();
  Result<> reserve_buffers();

  std::uint64_t steps_taken(std::uint32_t param) const;

  // stopped.cpp
  Result<> not_stopped() const;
  Result<StepResult> go_on();
  Result<> go_back();
  EngineStats all_stats() const;

  // snapshot.cpp
  formats::native::Manifest manifest() const;
  Result<bool> begin_snapshot();
  Result<std::uint64_t> wait_for_snapshot();

  EngineConfig config;
  Communicator& ranks;
  libswap::IoQueue& io;
  libswap::SwapDirectory& directory;
  Prepared parts;
  const Routes routes;
  std::unique_ptr<libswap::Pool> computing;
  libswap::Pool& pool;

  std::shared_ptr<libswap::Store> store;  // shared with exports
  std::unique_ptr<Sweep> sweep;
  std::filesystem::path store_path;
  std::string origin;
  std::string notes;  // on what was resumed or loaded, for `origin`

  std::uint64_t step = 0;
  // Per parameter: how many steps it has taken beyond `step`. Empty unless a checkpoint says so.
  std::vector<std::int64_t> steps_ahead;
  std::vector<std::span<const float>> gradients;  // per parameter, as handed in
  std::vector<bool> gradient_given;
  std::vector<std::span<float>> weights;  // per parameter, as bound
  std::vector<bool> bound;
  // What the trainer's buffers hold lies nowhere else.
  std::optional<Staging> staged_gradients, staged_weights;
  std::vector<formats::native::Blob> blobs;
  std::optional<Error> broken;                  // ranks could not agree whether to go on: reopen
  std::optional<Error> stopped;                 // a step was cut on some rank by an I/O error
  std::optional<Error> weights_owed;            // a step's weights were not handed out to all
  StepResult running;                           // of the step under way
  std::size_t chunk = 0;                        // of it
  bool gradients_here = false;                  // the chunk's
  std::optional<libswap::Snapshots> snapshots;  // of the sweep's cache
  std::uint64_t resumed_step = 0;
  EngineStats stats;  // without those of the present sweep's cache
};

}  // namespace ebb::libmuon
