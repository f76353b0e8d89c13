// The file of --stats: counters of all ranks, written while training goes on. A name that ends in
// .prom gets Prometheus text, replaced whole each time; any other a line for each rank and time.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ebb/libmuon/step/engine.h"
#include "ebb/libswap/sys/mutex.h"
#include "tools/cli/result_file.h"

namespace ebb::gpt {

class StatsFile {
 public:
  // Code::usage where something else is there. The queue is borrowed.
  static Result<std::unique_ptr<StatsFile>> open(libswap::IoQueue& io,
                                                 const std::filesystem::path& path,
                                                 std::uint32_t world);
  ~StatsFile();

  // Any thread. What the ranks have in common is told by rank 0.
  Result<> tell(Rank rank, const libmuon::EngineStats& stats);

 private:
  StatsFile(libswap::IoQueue& io, tools::ResultFile file, std::uint32_t world)
      : io_(io), file_(std::move(file)), latest_(world + 1) {}
  Result<> append(const std::string& line) EBB_REQUIRES(mutex_);
  Result<> tell(libswap::RankStats stats) EBB_REQUIRES(mutex_);

  libswap::IoQueue& io_;
  const tools::ResultFile file_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  libswap::Mutex mutex_;
  std::vector<libswap::RankStats> latest_ EBB_GUARDED_BY(mutex_);  // by rank; the last: of all
  std::optional<libswap::FileId> lines_ EBB_GUARDED_BY(mutex_);    // the open file
  std::uint64_t bytes_ EBB_GUARDED_BY(mutex_) = 0;                 // in it
};

}  // namespace ebb::gpt
