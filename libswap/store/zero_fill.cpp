#include "ebb/libswap/store/zero_fill.h"

#include <algorithm>

#include "ebb/libswap/sys/aligned_buffer.h"
#include "ebb/libswap/sys/mutex.h"

namespace ebb::libswap {
namespace {

constexpr std::uint64_t kPiece = 4u << 20;
constexpr std::uint32_t kInFlight = 8;

// Counts writes in flight and keeps the first failure in outcome_. Outlives them: finish() waits
// for all.
class Writes {
 public:
  // False: a write failed, start no more.
  bool wait_for_room() {
    const MutexLock lock(mutex_);
    while (in_flight_ >= kInFlight) changed_.wait(mutex_);
    if (!outcome_) return false;
    ++in_flight_;
    return true;
  }
  void done(Result<> result) {
    const MutexLock lock(mutex_);
    --in_flight_;
    if (!result && outcome_) outcome_ = std::move(result);
    changed_.notify_all();
  }
  Result<> finish() {
    const MutexLock lock(mutex_);
    while (in_flight_ != 0) changed_.wait(mutex_);
    return outcome_;
  }

 private:
  Mutex mutex_;
  Condition changed_;
  std::uint32_t in_flight_ EBB_GUARDED_BY(mutex_) = 0;
  Result<> outcome_ EBB_GUARDED_BY(mutex_);
};

}  // namespace

Result<> zero_fill(IoQueue& io, FileId file, std::uint64_t begin, std::uint64_t end) {
  EBB_TRY_ASSIGN(AlignedBuffer zeros, AlignedBuffer::allocate(kPiece));
  Writes writes;
  for (std::uint64_t at = begin; at < end && writes.wait_for_room(); at += kPiece) {
    const auto size = static_cast<std::size_t>(std::min(kPiece, end - at));
    io.submit({.kind = RawOp::Kind::write,
               .file = file,
               .offset = at,
               .data = zeros.bytes().first(size),
               .priority = Priority::background,
               .done = [&writes](Result<> result) { writes.done(std::move(result)); }});
  }
  return writes.finish();
}

}  // namespace ebb::libswap
