// One rank's trainer of a run of the covering array, and what it holds a step to: it is not
// skipped, moves the bytes that its plan says, and hands out what the store has.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ebb/libmuon/step/engine.h"
#include "ebb/libswap/testing/fault_backend.h"
#include "tests/libmuon/covering/bucket.h"
#include "tests/libmuon/covering/own_masters.h"
#include "tests/libmuon/covering/rank_run.h"
#include "tests/libmuon/covering/runs.h"

namespace ebb::test {

class CoveringRank {
 public:
  CoveringRank(const Leg& leg, const Run& run, libmuon::Communicator& ranks,
               libswap::FaultPlan& faults)
      : leg_(leg), run_(run), ranks_(ranks), faults_(faults) {}

  // The whole leg.
  Result<> run(libswap::IoQueue& io, libswap::SwapDirectory& swap);

 private:
  std::uint32_t params() const {
    return static_cast<std::uint32_t>(run_.config.model.params.size());
  }
  const libmuon::StatePlan& plan() const { return engine_->state_plan(); }
  bool is_rank(std::uint64_t drawn) const {
    return index_of(ranks_.rank()) == drawn % ranks_.world();
  }

  Result<> open(libswap::IoQueue& io, libswap::SwapDirectory& swap);
  Result<> begin(const libmuon::StatePlan& layouts, libswap::IoQueue& io,
                 libswap::SwapDirectory& swap);

  // --- gradients ---

  Result<> hand_in();
  // The event behind which a gradient is there; where they are late, nothing of it is yet, and they
  // come in any order.
  libswap::Event make(std::uint32_t param, std::uint64_t step, float scale);
  void fill(std::uint32_t param, std::uint64_t step, float scale);
  std::optional<libmuon::WithoutGradient> absent(std::uint32_t param, std::uint64_t step) const;
  float part_of_sum(std::uint32_t param) const;

  // --- steps ---

  Result<> step();
  // Some rank's disk fails from one of its reads or writes on, until all have stopped.
  Result<> step_that_stops();
  Result<> check_moved(const libmuon::EngineStats& before) const;
  Result<> behind_step(const libmuon::StepResult& result);
  Result<> write_weights(std::uint64_t step);
  Result<> write_masters(std::uint64_t step);
  Result<> write_momentum(std::uint64_t step);
  bool is_copied(const std::string& state) const;
  // In the middle of a step: of all ranks where they are threads, else of one.
  Result<> die();

  // What this rank holds is what the store and its own masters say; one rank tells the hash.
  Result<> compare();
  Result<> compare_by_name(const std::map<std::string, std::vector<float>>& stored);
  Result<> compare_weights(std::uint32_t param, const std::vector<float>& master);

  const Leg& leg_;
  const Run& run_;
  libmuon::Communicator& ranks_;
  libswap::FaultPlan& faults_;
  std::unique_ptr<libmuon::Engine> engine_;
  libmuon::EnginePlan said_;
  Bucket gradients_, weights_;
  std::optional<OwnMasters> masters_;
  std::vector<std::jthread> coming_;  // gradients that are late
};

}  // namespace ebb::test
