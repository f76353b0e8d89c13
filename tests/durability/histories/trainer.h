// One rank of a history's trainer: hands gradients in as the start says, and has weights, or, where
// the engine hands out updates, masters of its own.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/durability/draws.h"
#include "tests/durability/histories/handed_in.h"
#include "tests/libmuon/support/world.h"

namespace ebb::test {

std::string exactly(double value);  // so that two that differ look different

// By parameter: masters, all elements.
using Masters = std::vector<std::vector<float>>;
Masters initial_masters(const libmuon::ModelSpec& model);

class HistoryTrainer {
 public:
  // All are borrowed.
  HistoryTrainer(const Meaning& meaning, const Start& start, const libmuon::EngineConfig& config,
                 libmuon::Communicator& ranks);

  Result<> open(libswap::IoQueue& io, libswap::SwapDirectory& swap);
  // That of the next step: of all parameters that are here, in an order drawn from `mine`, which is
  // this rank's own.
  Result<> hand_in(Draws& mine);

  // Writes what is written behind a step, if anything is; then the engine is to take it.
  bool write(std::uint64_t step);
  Result<> take_written();

  // Reads a state by its name; `differing` says what of it is not that.
  Result<> read(const std::string& state, const std::map<std::string, std::vector<float>>& wanted,
                std::string& differing);

  // Where the trainer keeps masters: they are those of this step, or come to be with what was
  // handed out last.
  void take_masters(const Masters& of_step);
  void add_updates(std::uint64_t step);

  // What it has of a parameter after a step; "": what these masters are, as its weights are kept.
  std::string differing(std::uint32_t param, const Masters& wanted);
  std::string differing(const Masters& wanted);

  libmuon::Engine& engine() { return *engine_; }
  const std::string& name_of(std::uint32_t param) const { return config_.model.params[param].name; }
  std::uint32_t params() const { return static_cast<std::uint32_t>(config_.model.params.size()); }
  bool here(std::uint32_t param) const { return engine_->state_plan().here(param); }

 private:
  bool keeps(std::uint32_t param) const;
  Result<> begin(const libmuon::StatePlan& plan, libswap::IoQueue& io,
                 libswap::SwapDirectory& swap);
  template <typename Value>  // value(element)
  void fill_weights(const libmuon::StatePlan& plan, std::uint32_t param, const Value& value);
  Result<> hand_in_one(std::uint32_t param);
  Result<> add_micro_batches(std::uint32_t param, std::uint64_t step);
  void fill(std::uint32_t param, std::uint64_t step, Part part);
  Part part_of_sum() const;

  const Meaning& meaning_;
  const Start& start_;
  const libmuon::EngineConfig& config_;
  libmuon::Communicator& ranks_;
  Masters kept_;                                  // this rank's elements; empty: the engine's
  std::vector<TrainerBuffer> bound_, gradients_;  // by parameter
  std::unique_ptr<libmuon::Engine> engine_;
};

}  // namespace ebb::test
