#include "examples/gpt/stats_file.h"

#include "ebb/libswap/stats.h"
#include "ebb/libswap/sys/process.h"

namespace ebb::gpt {

using libswap::MutexLock;

Result<std::unique_ptr<StatsFile>> StatsFile::open(libswap::IoQueue& io,
                                                   const std::filesystem::path& path,
                                                   std::uint32_t world) {
  const bool prometheus = path.extension() == ".prom";
  const tools::ResultFile file{"--stats", path.string(), "counters",
                               prometheus ? libswap::kStatsText : libswap::kStatsLine};
  EBB_TRY(check_replaceable(file));
  std::unique_ptr<StatsFile> stats(new StatsFile(io, file, world));
  if (prometheus) return stats;
  EBB_TRY_ASSIGN(const libswap::FileId lines,
                 io.backend().open(path, {.access = libswap::Access::read_write,
                                          .creation = libswap::Creation::create_or_open,
                                          .visibility = libswap::Visibility::by_umask}));
  {
    const MutexLock lock(stats->mutex_);
    stats->lines_ = lines;
  }
  EBB_TRY(io.backend().truncate(lines, 0));
  return stats;
}

StatsFile::~StatsFile() {
  const MutexLock lock(mutex_);
  if (lines_) static_cast<void>(io_.backend().close(*lines_).has_value());
}

Result<> StatsFile::tell(Rank rank, const libmuon::EngineStats& stats) {
  const MutexLock lock(mutex_);
  EBB_TRY(tell({rank, stats_of(stats)}));
  return rank == Rank{0} ? tell({std::nullopt, stats_of(io_.stats())}) : Result<>();
}

Result<> StatsFile::tell(libswap::RankStats stats) {
  if (lines_) return append(stats_line(libswap::seconds_since(begin_), stats));
  const bool of_all = !stats.rank;
  latest_[of_all ? latest_.size() - 1 : formats::index_of(*stats.rank)] = std::move(stats);
  return of_all ? write_result(file_, libswap::stats_text(latest_)) : Result<>();
}

Result<> StatsFile::append(const std::string& line) {
  const std::uint64_t at = bytes_;
  bytes_ += line.size();
  return io_.write(*lines_, at, formats::view_of(line));
}

}  // namespace ebb::gpt
