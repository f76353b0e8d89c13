// Private to libmuon/step: the parts of an Engine and who calls whom.
//   engine.cpp        planning, small calls          open.cpp      create, resume, transfer, load
//   sweep.cpp         phase 2: the tile visitor      step.cpp      phases 0, 1, 3
//   snapshot.cpp      cut, background prepare, agreement
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

namespace ebb::libmuon {

inline constexpr std::uint64_t kMostBlobBytes = 256u << 10;  // of all blobs together
inline constexpr std::uint64_t kBlockBytes = 256u << 10;     // of a checksum
// What a blob takes of that.
constexpr std::uint64_t blob_bytes(std::size_t key, std::size_t bytes) { return key + bytes + 64; }

// Everything that follows from the description alone.
struct Prepared {
  StatePlan plan;
  libswap::Pager::Split split;
  Exchange gradients_in, weights_out;
  libswap::Store::Config store;  // without directory and uuids
};
Result<Prepared> prepare(const EngineConfig& config, Rank rank);
formats::native::Manifest manifest_template(const EngineConfig& config, const StatePlan& plan);

// A snapshot that is being made durable behind the steps. Its thread is there before the cut, so
// that a cut never lacks one, and waits for the word.
struct PendingSnapshot {
  enum class Word : std::uint8_t { none, go, never };
  ~PendingSnapshot();

  std::uint64_t generation = 0;
  std::uint64_t step = 0;
  formats::native::Manifest manifest;
  std::atomic<Word> word = Word::none;
  std::atomic<bool> done = false;  // `result` is final
  Result<> result;
  std::thread thread;
};

class ScatteredStore;

struct Engine::Impl {
  Impl(const EngineConfig& engine_config, Communicator& communicator, libswap::IoQueue& queue,
       libswap::SwapDirectory& swap_directory, Prepared prepared, std::unique_ptr<Pool> computing);

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
  Result<> open_pager();
  void take_blobs(const Catalog& catalog);
  void note(const std::string& text);
  void set_steps(const std::map<std::string, std::int64_t>& taken);
  Result<> fill_from(const InitialWeights& initial);
  Result<> fill_from(const Checkpoint& checkpoint);
  Result<> agree_all(const Result<>& mine, std::string_view doing);

  // step.cpp
  Result<> check_ready(const StepArgs& args) const;
  Result<StepResult> check_step(const StepArgs& args);
  Result<> gradients_in();
  Result<> apply(float grad_scale);
  Result<> weights_out();
  // Of this rank's own range: the gathered copy, or the part of the trainer's buffer that holds it.
  std::span<const float> own_gradient(std::uint32_t param) const;
  std::span<float> own_weight(std::uint32_t param);
  void reserve_buffers();

  // sweep.cpp
  Result<> update_sweep(float grad_scale);
  Result<> look_sweep();
  void visit_momentum(const Visit& visit, std::span<float> tile, float grad_scale);
  void visit_master(const Visit& visit, std::span<float> tile);
  void visit_adam(const Visit& visit, std::span<float> tile, float grad_scale);
  std::uint32_t group_of(std::uint32_t param) const { return config.model.params[param].group; }
  std::uint64_t steps_taken(std::uint32_t param) const;
  void orthogonalize(const Item& item);
  void hand_out(const StatePlan::Span& span, std::span<const float> weights);

  // snapshot.cpp
  formats::native::Manifest manifest() const;
  void make_durable(PendingSnapshot& snapshot);
  Result<bool> begin_snapshot();
  enum class SettleMode : std::uint8_t { poll, wait };
  Result<> settle_snapshot(SettleMode mode);
  Result<std::uint64_t> wait_for_snapshot();

  EngineConfig config;
  Communicator& ranks;
  libswap::IoQueue& io;
  libswap::SwapDirectory& directory;
  Prepared parts;
  std::unique_ptr<Pool> computing;
  Pool& pool;
  std::vector<std::unique_ptr<NewtonSchulz>> newton_schulz;  // per group; null for AdamW

  std::shared_ptr<libswap::Store> store;  // shared with exports
  std::unique_ptr<libswap::Pager> pager;
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
  std::vector<std::vector<float>> own_gradients;  // per parameter: gathered, when not an alias
  std::vector<std::vector<float>> own_weights;    // per parameter: new weights, when not an alias
  std::vector<float> u, o;                        // of one item
  std::vector<formats::native::Blob> blobs;
  std::optional<Error> broken;        // after a failed sweep: reopen
  std::optional<Error> weights_owed;  // a step's weights were not handed out to all
  std::unique_ptr<PendingSnapshot> pending;
  std::optional<Error> abandoned;  // the last snapshot that was settled
  std::uint64_t committed_step = 0;
  EngineStats stats;
};

}  // namespace ebb::libmuon
