// Private to libmuon/step: the parts of an Engine and who calls whom.
//   engine.cpp        planning, small calls          open.cpp      create, resume, transfer, load
//   sweep.cpp         phase 2: the tile visitor      step.cpp      phases 0, 1, 3
//   snapshot.cpp      cut, background prepare, agreement
#pragma once

#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ebb/libmuon/kernels/kernels.h"
#include "ebb/libmuon/step/engine.h"
#include "ebb/libmuon/step/exchange.h"

namespace ebb::libmuon {

inline constexpr std::uint64_t kRoundBytes = 256u << 20;     // of a model, per exchange round
inline constexpr std::uint64_t kMostBlobBytes = 256u << 10;  // of all blobs together
inline constexpr std::uint64_t kBlockBytes = 256u << 10;     // of a checksum

// Everything that follows from the description alone.
struct Prepared {
  StatePlan plan;
  libswap::Pager::Split split;
  Exchange gradients_in, weights_out;
  libswap::Store::Config store;  // without directory and uuids
};
Result<Prepared> prepare(const EngineConfig& config, Rank rank);
formats::native::Manifest manifest_template(const EngineConfig& config, const StatePlan& plan);

// A snapshot that is being made durable behind the steps.
struct PendingSnapshot {
  std::uint64_t generation = 0;
  std::thread thread;
  std::atomic<bool> done = false;  // `result` is final
  Result<> result;
};

struct Engine::Impl {
  Impl(const EngineConfig& engine_config, Communicator& communicator, libswap::IoQueue& queue,
       libswap::SwapDirectory& swap_directory, Prepared prepared);
  ~Impl();

  // open.cpp
  Result<> attach(const InitialWeights& initial, const formats::Checkpoint* checkpoint);
  Result<> resume(const libswap::SwapDirectory::Entry& current);
  Result<> make_store(const formats::native::Uuid& parent);
  Result<> fill_from(const InitialWeights& initial);
  Result<> fill_from(const formats::Checkpoint& checkpoint);
  Result<> agree_all(const Result<>& mine, std::string_view doing);

  // step.cpp
  Result<> check_gradients() const;
  Result<StepResult> check_step(const StepArgs& args);
  bool counts_for_norm() const;
  Result<> gradients_in();
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
  void orthogonalize(const Item& item);
  void hand_out(const StatePlan::Span& span, std::span<const float> weights);

  // snapshot.cpp
  Result<bool> begin_snapshot();
  enum class Patience : std::uint8_t { poll, wait };
  Result<> settle_snapshot(Patience patience);

  EngineConfig config;
  Communicator& ranks;
  libswap::IoQueue& io;
  libswap::SwapDirectory& directory;
  Prepared parts;
  Pool pool;
  std::vector<std::unique_ptr<NewtonSchulz>> newton_schulz;  // per group; null for AdamW

  std::unique_ptr<libswap::Store> store;
  std::unique_ptr<libswap::Pager> pager;
  std::filesystem::path store_path;
  std::string origin;

  std::uint64_t step = 0;
  std::vector<std::span<const float>> gradients;  // per parameter, as handed in
  std::vector<bool> gradient_given;
  std::vector<std::span<float>> weights;  // per parameter, as bound
  std::vector<bool> bound;
  std::vector<std::vector<float>> own_gradients;  // per parameter: gathered, when not an alias
  std::vector<std::vector<float>> own_weights;    // per parameter: new weights, when not an alias
  std::vector<float> u, o;                        // of one item
  std::vector<formats::native::Blob> blobs;
  std::optional<formats::Error> broken;  // after a failed sweep: reopen
  std::unique_ptr<PendingSnapshot> pending;
  EngineStats stats;
};

}  // namespace ebb::libmuon
