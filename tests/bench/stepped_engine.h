// An engine of one rank with weights and gradients of made numbers, for programs that time its
// steps.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "ebb/libmuon/step/engine.h"

namespace ebb::bench {

// Element i of what belongs to a parameter: in [-0.5, 0.5), 24 bits.
float made_number(std::uint64_t param, std::uint64_t i);

class SteppedEngine {
 public:
  // One for all (parameter 7's, in each one's first elements): what is measured is the state's
  // memory. Or each its own: those of as many parameters behind the last.
  enum class Gradients : std::uint8_t { one_for_all, one_each };
  // A store in `directory`, which is made; weights are bound.
  static Result<std::unique_ptr<SteppedEngine>> open(const libmuon::EngineConfig& config,
                                                     const std::filesystem::path& directory,
                                                     Gradients gradients);

  // Of all parameters.
  Result<> hand_in_gradients();
  libmuon::Engine& engine() { return *engine_; }
  libswap::IoQueue& io() { return *io_; }
  const std::vector<std::vector<float>>& weights() const { return weights_; }

 private:
  Result<> bind(const libmuon::EngineConfig& config, Gradients gradients);

  std::unique_ptr<libswap::IoQueue> io_;
  std::unique_ptr<libswap::SwapDirectory> swap_;
  std::vector<std::unique_ptr<libmuon::Communicator>> ranks_ = libmuon::make_thread_ranks(1);
  std::vector<std::vector<float>> weights_, gradients_;
  std::unique_ptr<libmuon::Engine> engine_;
};

}  // namespace ebb::bench
