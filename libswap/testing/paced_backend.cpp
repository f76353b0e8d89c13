#include "ebb/libswap/testing/paced_backend.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <random>

#include "ebb/libswap/sys/mutex.h"
#include "ebb/libswap/testing/backend_below.h"

namespace ebb::libswap {
namespace {

using Clock = std::chrono::steady_clock;

class PacedBackend : public BackendBelow {
 public:
  PacedBackend(std::unique_ptr<IoBackend> below, std::vector<PacedDisk> disks)
      : BackendBelow(std::move(below)), disks_(std::move(disks)), free_from_(disks_.size()) {}

  Result<FileInfo> info(FileId file) override {
    EBB_TRY_ASSIGN(FileInfo info, BackendBelow::info(file));
    info.device += disk_of(file) + 1;
    return info;
  }
  void submit(std::span<const RawOp> ops) override;
  std::size_t wait(std::span<RawDone> done) override;
  void wake() override {
    const MutexLock lock(mutex_);
    woken_ = true;
    changed_.notify_all();
  }

 private:
  std::size_t disk_of(FileId file) const;
  Clock::duration time_of(const PacedDisk& disk, std::uint64_t bytes);

  const std::vector<PacedDisk> disks_;
  std::vector<Clock::time_point> free_from_;           // by disk; of the thread that submits
  std::mt19937 stalls_;                                // of that thread
  std::multimap<Clock::time_point, RawDone> pending_;  // by when it is done; of that thread
  Mutex mutex_;
  Condition changed_;
  bool woken_ EBB_GUARDED_BY(mutex_) = false;
};

// disks_.size(): none.
std::size_t PacedBackend::disk_of(FileId file) const {
  const std::string path = path_of(file);
  const auto disk = std::ranges::find_if(
      disks_, [&](const PacedDisk& one) { return path.find(one.path_part) != path.npos; });
  return static_cast<std::size_t>(disk - disks_.begin());
}

Clock::duration PacedBackend::time_of(const PacedDisk& disk, std::uint64_t bytes) {
  double takes = static_cast<double>(bytes) / disk.bytes_per_s;
  if (std::bernoulli_distribution(std::min(1.0, takes * disk.stalls_per_s))(stalls_))
    takes += std::uniform_real_distribution(0.001, 0.020)(stalls_);
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(takes));
}

void PacedBackend::submit(std::span<const RawOp> ops) {
  std::map<std::uint64_t, Clock::time_point> due;  // by tag
  const Clock::time_point now = Clock::now();
  for (const RawOp& op : ops) {
    const std::size_t disk = disk_of(op.file);
    if (disk == disks_.size() || op.kind == RawOp::Kind::sync_data) {
      due[op.tag] = now;
      continue;
    }
    free_from_[disk] = std::max(now, free_from_[disk]) + time_of(disks_[disk], op.size);
    due[op.tag] = free_from_[disk];
  }
  below().submit(ops);
  std::vector<RawDone> done(ops.size());
  for (std::size_t left = ops.size(); left > 0;) {
    const std::size_t count = below().wait(done);
    for (std::size_t i = 0; i < count; ++i) pending_.emplace(due.at(done[i].tag), done[i]);
    left -= count;
  }
}

std::size_t PacedBackend::wait(std::span<RawDone> done) {
  {
    const MutexLock lock(mutex_);
    while (!woken_) {
      if (pending_.empty()) {
        changed_.wait(mutex_);
      } else if (const auto left = pending_.begin()->first - Clock::now(); left.count() > 0) {
        changed_.wait_for(mutex_, left);
      } else {
        break;
      }
    }
    woken_ = false;
  }
  std::size_t count = 0;
  while (count < done.size() && !pending_.empty() && pending_.begin()->first <= Clock::now()) {
    done[count++] = pending_.begin()->second;
    pending_.erase(pending_.begin());
  }
  return count;
}

}  // namespace

std::unique_ptr<IoBackend> make_paced_backend(std::unique_ptr<IoBackend> below,
                                              std::vector<PacedDisk> disks) {
  return std::make_unique<PacedBackend>(std::move(below), std::move(disks));
}

}  // namespace ebb::libswap
