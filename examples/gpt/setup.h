// From settings to what the engine is told: its model, its partition and each rank's budget; and
// what all of it will take, before anything is allocated.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ebb/libmuon/step/engine.h"
#include "examples/gpt/model.h"
#include "examples/gpt/settings.h"
#include "examples/gpt/text.h"

namespace ebb::gpt {

// Groups of the engine's model.
constexpr std::uint32_t kMatrixGroup = 0;
constexpr std::uint32_t kAdamGroup = 1;
constexpr std::uint32_t kFrozenGroup = 2;  // there where something is frozen

// Both groups' rates are those of Settings::matrices, and this, times schedule(step, decay_end).
constexpr double kAdamRate = 0.01;
// Ten steps of warm-up, full rate to two fifths of `end`, then linearly down to a twentieth at it.
// A function of both alone: where training was interrupted, or will end, does not change it.
double schedule(std::uint64_t step, std::uint64_t end);

// Gradients come in `zero12` (reduce.h), weights go to every rank. One rank's budget is its share
// of Settings::budget, in proportion to its state. Code::no_memory names the smallest that works.
Result<std::vector<libmuon::EngineConfig>> engine_configs(const Settings& settings,
                                                          const Model& model,
                                                          libswap::Trace* trace);

// All ranks together.
struct Predicted {
  std::uint64_t state_bytes = 0;
  std::uint64_t disk_bytes = 0;
  std::uint64_t step_read_bytes = 0, step_written_bytes = 0, step_sent_bytes = 0;
  std::uint64_t frame_bytes = 0;                              // the budget's use
  std::vector<std::pair<std::string, std::uint64_t>> memory;  // line by line, frames first

  std::uint64_t memory_total() const;
};
// `processes`: that the ranks are in.
Result<Predicted> predict(const std::vector<libmuon::EngineConfig>& engines, const Model& model,
                          const Corpus& corpus, std::uint32_t processes = 1);

}  // namespace ebb::gpt
