// A snapshot written in a foreign format while training goes on: the committed generation is pinned
// and written by a thread of its own at background priority.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/conversion/convert.h"
#include "ebb/libmuon/step/engine.h"
#include "examples/gpt/settings.h"

namespace ebb::gpt {

struct Exported {
  std::uint64_t step = 0;
  std::uint64_t bytes = 0;
  double seconds = 0;
  std::filesystem::path directory;
};

// One a rank; every rank pins, rank 0 writes. Calls come from the rank's own thread.
class Exporter {
 public:
  // `world`: ranks the result is for. All borrowed.
  Exporter(const ExportRequest& request, std::uint32_t world, libswap::IoQueue& io,
           libmuon::Engine& engine, Rank rank, std::atomic<bool>& written);
  ~Exporter();

  // Before the first step, on rank 0: what the format cannot hold, or a place that cannot be
  // written, is refused now, not at the end.
  Result<> check() const;
  // Before the first step, on rank 0: a run that was killed behind its export has begun at that
  // step once more, and what is to be exported lies there.
  bool is_there() const;
  void leave_out() { phase_ = Phase::done; }
  // The run begins behind the step to export: there is nothing to do.
  bool too_late() const { return too_late_; }
  // After each step; true: snapshot now, wherever the usual interval stands.
  bool wants_snapshot() const;
  void snapshot_taken();
  // After each step: starts writing when a generation of that step or a later one is committed,
  // unpins when it is written.
  Result<> advance();
  // Waits for the writer. nullopt on ranks other than 0, or when nothing was exported.
  Result<std::optional<Exported>> finish();

 private:
  enum class Phase : std::uint8_t { waiting, writing, done };
  Result<> start_writing();
  Result<formats::Conversion> plan(const Checkpoint& source) const;
  Result<> check_place(const formats::EmitPlan& plan) const;
  Result<Exported> write(const Checkpoint& source, std::uint64_t step) const;

  const ExportRequest& request_;
  const std::uint32_t world_;
  libswap::IoQueue& io_;
  libmuon::Engine& engine_;
  const Rank rank_;
  std::atomic<bool>& written_;  // shared by the ranks
  const bool too_late_;
  Phase phase_ = Phase::waiting;
  bool under_way_ = false;  // a snapshot that can be exported, until it is committed or given up
  std::optional<libmuon::PinnedCheckpoint> pinned_;
  std::unique_ptr<Checkpoint> source_;
  std::thread writer_;
  std::optional<Result<Exported>> result_;  // set by the writer, read after join
};

}  // namespace ebb::gpt
