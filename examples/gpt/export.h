// A snapshot written in a foreign format while training goes on: the committed generation is
// pinned, described by the reader the tools use, and written by a thread of its own at background
// priority.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>

#include "ebb/formats/catalog/catalog.h"
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
           libmuon::Engine& engine, formats::Rank rank, std::atomic<bool>& written);
  ~Exporter();

  // After each step; true: snapshot now, wherever the usual interval stands.
  bool wants_snapshot() const;
  // What snapshot() answered; `before`: the generation committed until then.
  void took_snapshot(bool taken, std::uint64_t before);
  // After each step: starts writing when that snapshot is committed, unpins when it is written.
  Result<> advance();
  // Waits for the writer. nullopt on ranks other than 0, or when nothing was exported.
  Result<std::optional<Exported>> finish();

 private:
  enum class Phase : std::uint8_t { waiting, cut, writing, done };
  Result<> start_writing();
  Result<Exported> write(const formats::Checkpoint& source) const;

  const ExportRequest& request_;
  const std::uint32_t world_;
  libswap::IoQueue& io_;
  libmuon::Engine& engine_;
  const formats::Rank rank_;
  std::atomic<bool>& written_;  // shared by the ranks
  Phase phase_ = Phase::waiting;
  std::uint64_t before_ = 0;
  std::uint64_t pinned_ = 0;
  std::uint64_t step_ = 0;
  std::unique_ptr<formats::Checkpoint> source_;
  std::thread writer_;
  std::optional<Result<Exported>> result_;  // set by the writer, read after join
};

}  // namespace ebb::gpt
