// One rank in one start of a history: trains to its last step, whatever the disks do and wherever
// it wanders to, and does what errors ask for. All ranks draw the same.
#pragma once

#include <mutex>
#include <optional>
#include <vector>

#include "ebb/libswap/testing/fault_backend.h"
#include "tests/durability/histories/run.h"
#include "tests/durability/histories/wanted.h"

namespace ebb::test {

// What the ranks of a start have in common.
struct OfStart {
  const Meaning& meaning;
  const Start& start;
  const libmuon::EngineConfig& config;
  const Wanted& wanted;
  std::filesystem::path directory;  // where the run goes on; changes when its state moves
  std::uint64_t committed = 0;      // step of the last generation that it knows of
  Tally tally = {};                 // rank 0's
};

class RankOfStart {
 public:
  RankOfStart(OfStart& of, libmuon::Communicator& ranks, libswap::IoQueue& io,
              libswap::FaultPlan& faults);
  // An error is what should not have been: bits that differ are Code::corrupt.
  Result<> run();

 private:
  enum class After : std::uint8_t { done, went_back };

  Result<> open();
  Result<> turn();
  Result<libmuon::StepResult> step();
  Result<libmuon::StepResult> step_asking_for_weights();
  // Until the step is made, or the engine went back.
  Result<After> finish(Result<libmuon::StepResult> made);
  Result<libmuon::StepResult> again();
  Result<> check(const libmuon::StepResult& made);
  Result<> write_weights();
  Result<> read_by_name();
  Result<> read(const std::string& state);
  Result<> snapshot();
  Result<> commit();
  Result<> wander();

  // The ways out.
  Result<> go_back();
  Result<> move();
  Result<> leave_lost_store();
  bool can_go_back();

  Result<> pin();
  Result<> unpin();

  void break_disk();
  Result<> mend();
  // Whether all ranks say so; they must say the same.
  template <typename T>
  Result<bool> all_well(const Result<T>& mine, std::string_view what);
  Result<> same_bits();
  Result<> compare_stored(const libmuon::PinnedCheckpoint& pinned);

  libmuon::Engine& engine() { return trainer_.engine(); }
  bool speaks() const { return ranks_.rank() == Rank{0}; }
  void count(std::uint64_t Tally::* what) { of_.tally.*what += speaks() ? 1 : 0; }

  OfStart& of_;
  libmuon::Communicator& ranks_;
  libswap::IoQueue& io_;
  libswap::FaultPlan& faults_;
  Draws shared_, mine_;
  std::vector<std::unique_ptr<libswap::SwapDirectory>> directories_;  // the last is where it is
  HistoryTrainer trainer_;
  std::optional<libmuon::PinnedCheckpoint> pinned_;
};

}  // namespace ebb::test
