// FaultBackend: decorates a backend and makes chosen operations go wrong, as disks and kernels do.
// io_uring cannot be intercepted from outside, so faults are injected here.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ebb/libswap/sys/io_backend.h"
#include "ebb/libswap/sys/mutex.h"

namespace ebb::libswap {

// The operations a fault counts.
enum class FaultOn : std::uint8_t {
  any,      // all of the following
  durable,  // whatever changes the disk: open that may create, allocate, truncate, sync, lock,
            // names, writes, sync_data
  data,     // reads, writes, sync_data
  read,
  write,
  sync,  // sync, sync_data, sync_directory
  name,  // open that may create, make_directory, rename, rename_new, remove
};

enum class FaultKind : std::uint8_t {
  fail,            // answers `error`; nothing happens on the disk
  done,            // answers `error`, although it happened
  short_transfer,  // a read or write moves only its first half, and says so
  torn,            // a write's second half is lost, a read's comes back as zeros; reported as whole
  misdirected,     // a read or write goes to its neighbour, `size` bytes before it or, at the start
                   // of the file, behind it; reported as done
  stale,           // a read or write does not happen, the memory or the disk stays as it was;
                   // reported as done
  late,            // a read, write or sync_data is done `delay` later: meanwhile nothing is
  die,             // the process ends before the operation: this and every later one is `cancelled`
};  // halves are multiples of 4 KiB: the first half of 4 KiB is nothing

struct Fault {
  FaultOn on = FaultOn::data;
  std::uint64_t at = 0;     // the at-th matching operation, from 0
  std::uint64_t count = 1;  // and those after it
  FaultKind kind = FaultKind::fail;
  int error = 5;          // errno; 5 is EIO
  std::string path_part;  // only operations on paths that contain this; empty: all
  std::chrono::milliseconds delay{0};
};

// Shared by a test and the backends it decorates. Thread-safe. Kinds that need bytes have no effect
// on operations without.
class FaultPlan {
 public:
  static constexpr std::uint64_t kForEver = std::numeric_limits<std::uint64_t>::max();

  void add(Fault fault);
  void clear();  // faults, not counts; a process that died stays dead, one that is to die will
  // The process dies before its at-th durable operation, from 0. `seen`, if any, is called then,
  // once, by the thread that makes the operation: it may look at the disk as that moment leaves it.
  void die_before(std::uint64_t at, std::function<void()> seen = nullptr);
  // Operations seen, faulty or not: what a crash sweep enumerates.
  std::uint64_t operations() const;
  std::uint64_t durable_operations() const;
  std::uint64_t data_operations() const;
  bool died() const;
  std::int64_t open_files() const;  // of the backends that this plan is for

  // For the decorator. What happens to this operation; counts it.
  struct Operation {
    RawOp::Kind kind{};
    bool data = false;  // read, write or sync_data, by `kind`
    bool durable = false;
    bool sync = false;
    bool name = false;
    std::string path;
  };
  std::optional<Fault> next(const Operation& operation);
  void opened(std::int64_t files);

 private:
  struct Armed {
    Fault fault;
    std::uint64_t seen = 0;
  };
  static bool matches(const Fault& fault, const Operation& operation);
  std::optional<Fault> next_alive(const Operation& operation) EBB_REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::vector<Armed> faults_ EBB_GUARDED_BY(mutex_);
  std::uint64_t all_ EBB_GUARDED_BY(mutex_) = 0;
  std::uint64_t durable_ EBB_GUARDED_BY(mutex_) = 0;
  std::uint64_t data_ EBB_GUARDED_BY(mutex_) = 0;
  std::int64_t open_files_ EBB_GUARDED_BY(mutex_) = 0;
  std::optional<std::uint64_t> die_at_ EBB_GUARDED_BY(mutex_);
  std::function<void()> at_death_ EBB_GUARDED_BY(mutex_);
  bool died_ EBB_GUARDED_BY(mutex_) = false;
};

std::unique_ptr<IoBackend> make_fault_backend(std::unique_ptr<IoBackend> inner,
                                              std::shared_ptr<FaultPlan> plan);

}  // namespace ebb::libswap
