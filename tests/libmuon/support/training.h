// A tiny trainer for engine tests: ranks as threads, gradients that are a function of (parameter,
// step, element) alone, weights replicated. Everything about the partition is a knob.
#pragma once

#include <array>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "ebb/libmuon/step/engine.h"

namespace ebb::test {

// Shapes with every nuisance: tall, wide, prime sizes, one row, one element, vectors, a 4-d tensor.
libmuon::ModelSpec nuisance_model();
// The same model, which wants its weights in bf16.
libmuon::ModelSpec with_bf16_weights(libmuon::ModelSpec model);

// What must not change a bit, to be tried one after the other.
inline constexpr std::array kPlacements = {libmuon::Placement::owner, libmuon::Placement::shard};

struct Training {
  std::uint32_t ranks = 1;
  std::uint32_t copies = 1;  // of gradients and weights
  Policy gradients = Policy::zero12;
  Policy weights = Policy::replicated;
  libmuon::Placement placement = libmuon::Placement::owner;
  std::uint64_t tile_bytes = 4096;
  std::uint64_t chunk_bytes = 256u << 20;
  std::uint64_t early_gradient_bytes = 0;
  std::uint64_t budget_bytes = 1u << 30;  // a rank's, for tiles alone
  std::uint32_t slots = 3;
  std::uint32_t threads = 1;
  std::uint64_t snapshot_every = 0;  // 0: only where the test asks
  std::uint64_t poison_step = 0;     // one gradient of that step is NaN on one rank
  double max_norm = 0;
  // A step's gradient is their sum in fp32, in order: by the trainer, or (added) by the engine.
  std::uint32_t micro_batches = 1;
  libmuon::HandIn hand_in = libmuon::HandIn::reduced;
  bool bf16_gradients = false;  // they are numbers of bf16, whatever they are handed in as
  libmuon::Accelerator* accelerator = nullptr;  // of all ranks
  decltype(libmuon::EngineConfig::tiers) tiers = {};
  libmuon::Side gradients_on = libmuon::Side::host, weights_on = libmuon::Side::host;
  libmuon::Side wire = libmuon::Side::device;  // host: the ranks take no device's memory
  std::uint64_t stream_above_bytes = libmuon::kNothingStreamed;
  libmuon::StateDTypes dtypes = {};
  std::optional<libmuon::Bf16> bf16 = libmuon::Bf16::emulated;
  libmuon::ModelSpec model = nuisance_model();
};

struct Outcome {
  std::vector<float> weights;                // of all parameters, concatenated
  std::vector<libmuon::EngineStats> stats;   // per rank
  std::vector<libmuon::EnginePlan> plans;    // per rank
  std::vector<libmuon::StepResult> results;  // rank 0, per step
  std::string origin;                        // rank 0
  std::uint64_t step = 0;
  std::uint64_t generation = 0;
  std::string error;  // the first rank's, if any failed
  bool operator==(const Outcome& other) const { return weights == other.weights; }
};

// To a budget that is meant for tiles: what the ranks need beside them.
void add_what_tiles_need_beside(libmuon::EngineConfig& config,
                                libmuon::Side wire = libmuon::Side::host);
libmuon::EngineConfig config_of(const Training& setup, const libmuon::ModelSpec& model);

// Opens (or resumes) in `directory`, trains until `last_step`, takes a final snapshot if asked.
enum class Finish : std::uint8_t { snapshot, just_stop };
Outcome train(const Training& setup, const std::filesystem::path& directory,
              std::uint64_t last_step, Finish finish = Finish::snapshot,
              const Checkpoint* checkpoint = nullptr);

// One rank of train() in a process of its own; what it answered stands at its own number, the rest
// is rank 0's.
Outcome train_in_process(const Training& setup, libmuon::Communicator& ranks,
                         const std::filesystem::path& directory, std::uint64_t last_step,
                         const std::vector<std::filesystem::path>& sources = {});

// A fresh folder below the build's temporary directory, removed with the object.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace ebb::test
