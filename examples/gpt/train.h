// Training over ranks: each computes the gradients of its share of the batch, the slices of
// their mean go to the engine, new weights come back.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ebb/libmuon/step/engine.h"
#include "examples/gpt/export.h"
#include "examples/gpt/model.h"
#include "examples/gpt/settings.h"
#include "examples/gpt/stats_file.h"
#include "examples/gpt/swap_directories.h"
#include "examples/gpt/team.h"
#include "examples/gpt/text.h"

namespace ebb::gpt {

// What the ranks of one process share; everything is borrowed.
struct Run {
  const Settings& settings;
  const Model& model;
  const Corpus& corpus;
  const std::vector<libmuon::EngineConfig>& engines;  // one a rank
  libswap::IoQueue& io;
  const SwapDirectories& swap;
  const Checkpoint* resume_from;                // null: none
  const std::atomic<bool>& stop;                // the user asked to stop
  std::function<void(const std::string&)> say;  // one line of progress; called by rank 0
  StatsFile* stats;                             // null: none
};

struct StepTimes {
  double gradients_s = 0;  // forward, backward, the ordered mean
  double waited_s = 0;     // of the trainer, for the optimizer
  double engine_s = 0;     // the optimizer's step, the next forward beside it
  double swept_s = 0;      // of that, in sweeps
  double exchange_s = 0;   // of that, in exchanges with no sweep beside them
};

// Snapshots left out.
struct Traffic {
  std::uint64_t read_bytes = 0, written_bytes = 0, sent_bytes = 0;
};

struct Outcome {
  std::string origin;  // "created at step 0", "resumed ...", of the engine
  std::uint64_t first_step = 0;
  std::uint64_t last_step = 0;
  double first_loss = 0;                // of the first batch of this run, nats per byte
  double train_loss = 0;                // of the last batch
  std::vector<double> losses;           // of every batch of this run
  double held_out_loss = 0;             // at the end
  double seconds = 0;                   // of all steps, evaluation and opening left out
  std::vector<StepTimes> steps;         // of rank 0, after the warm-up of two
  Traffic traffic;                      // of all ranks and steps
  double longest_snapshot_stall_s = 0;  // one snapshot() call, any rank
  std::uint64_t snapshots = 0;
  std::optional<libswap::StepFigures> timeline;  // where it was traced
  std::uint64_t snapshots_put_off = 0;           // while another process read the store
  std::uint64_t generation = 0;                  // committed last
  std::string store;                             // its folder
  Result<std::optional<Exported>> exported = std::optional<Exported>();
  bool stopped = false;       // before settings.steps, on request
  std::uint64_t skipped = 0;  // steps whose gradients overflowed
  TrainerState state;         // at the end
};

// Collective; see Team::run. Where the team leads, rank 0's view with what only others know.
Result<Outcome> train(const Run& run, Team& team);

}  // namespace ebb::gpt
