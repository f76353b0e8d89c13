// A trainer with masters of its own: of groups with Out::update it adds what a step hands out to
// them. Gradients and initial weights are functions of (parameter, step, element) alone.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/libmuon/support/training.h"
#include "tests/libmuon/support/world.h"

namespace ebb::test {

// Matrices of two Muon groups (0, 2) in turn, small ones and a stack among them, and some of a
// third (3); of the groups in `updates` the trainer keeps the masters.
libmuon::ModelSpec keeping_model(const std::vector<std::uint32_t>& updates);

// Of the parameter of this number gradients are zero, and some weights are -0.
inline constexpr std::uint32_t kZeroParam = 3;
void weights_with_zeros(std::uint32_t param, FlatRange range, std::span<float> into);

using Tensors = std::map<std::string, std::vector<float>>;  // by "name state"

class KeepingTrainer {
 public:
  // Masters begin as weights_with_zeros, or as those of `kept`.
  static Result<KeepingTrainer> open(World& world, libmuon::Communicator& ranks,
                                     const libmuon::EngineConfig& config,
                                     const Tensors* kept = nullptr,
                                     const Checkpoint* checkpoint = nullptr);

  // Those of the next step.
  Result<> hand_in(float scale = 1);
  Result<> hand_in_but(std::uint32_t untouched);
  Result<libmuon::StepResult> step(const libmuon::StepArgs& args = {.max_norm = 3});
  void add_updates();
  // hand_in(), step(), add_updates(), so many times.
  Result<> train(std::uint64_t steps);
  Result<> commit();

  // What lies where weights are bound, this rank's elements one behind the other.
  std::vector<std::vector<float>> handed_out();
  // Its masters of those parameters that it keeps, and the engine's weights of the others.
  std::vector<std::vector<float>> weights();
  // The parameters of which some weight is not that master, bit for bit; "": none.
  std::string differing(const Tensors& masters);

  libmuon::Engine& engine() { return *engine_; }

 private:
  explicit KeepingTrainer(const libmuon::EngineConfig& config) : config_(config) {}
  bool keeps(std::uint32_t param) const;
  Result<> hand_in_one(std::uint32_t param, float scale);

  libmuon::EngineConfig config_;
  std::vector<std::vector<float>> kept_;          // by parameter; empty: the engine's
  std::vector<TrainerBuffer> bound_, gradients_;  // by parameter
  std::unique_ptr<libmuon::Engine> engine_;
};

// What an engine that keeps all masters makes of such a model in so many steps, on one rank.
Tensors trained_alone(const libmuon::ModelSpec& model, std::uint64_t steps);

}  // namespace ebb::test
