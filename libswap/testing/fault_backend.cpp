#include "ebb/libswap/testing/fault_backend.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <thread>

#include "ebb/libswap/sys/errno_error.h"
#include "ebb/libswap/sys/mutex.h"
#include "ebb/libswap/testing/backend_below.h"

namespace ebb::libswap {
namespace {

constexpr std::uint32_t kBlock = 4096;

std::uint32_t half_of(std::uint32_t size) { return size / 2 - size / 2 % kBlock; }

class FaultBackend : public BackendBelow {
 public:
  FaultBackend(std::unique_ptr<IoBackend> inner, std::shared_ptr<FaultPlan> plan)
      : BackendBelow(std::move(inner)), plan_(std::move(plan)) {}

  Result<FileId> open(const fs::path& path, const OpenOptions& options) override {
    const bool creates = options.creation != Creation::open_existing;
    EBB_TRY(creates ? before("open", path, Touches::name) : alive("open", path));
    EBB_TRY_ASSIGN(const FileId file, below().open(path, options));
    plan_->opened(1);
    return file;
  }
  Result<> close(FileId file) override {
    EBB_TRY(below().close(file));
    plan_->opened(-1);
    return {};
  }
  Result<> allocate(FileId file, std::uint64_t bytes) override {
    EBB_TRY(before("reserve space for", path_of(file), Touches::file));
    return below().allocate(file, bytes);
  }
  Result<> truncate(FileId file, std::uint64_t bytes) override {
    EBB_TRY(before("truncate", path_of(file), Touches::file));
    return below().truncate(file, bytes);
  }
  Result<> sync(FileId file) override {
    EBB_TRY(before("sync", path_of(file), Touches::sync));
    return below().sync(file);
  }
  Result<> lock(FileId file) override {
    EBB_TRY(before("lock", path_of(file), Touches::file));
    return below().lock(file);
  }
  Result<> make_directory(const fs::path& path, Visibility visibility) override {
    EBB_TRY(before("make the directory", path, Touches::name));
    return below().make_directory(path, visibility);
  }
  Result<> sync_directory(const fs::path& path) override {
    EBB_TRY(before("sync the directory", path, Touches::sync));
    return below().sync_directory(path);
  }
  Result<> rename(const fs::path& from, const fs::path& to) override {
    EBB_TRY(before("rename", from.string() + " to " + to.string(), Touches::name));
    return below().rename(from, to);
  }
  Result<> rename_new(const fs::path& from, const fs::path& to) override {
    EBB_TRY(before("rename", from.string() + " to " + to.string(), Touches::name));
    return below().rename_new(from, to);
  }
  Result<> remove(const fs::path& path) override {
    EBB_TRY(before("remove", path, Touches::name));
    return below().remove(path);
  }
  Result<std::vector<std::string>> list(const fs::path& directory) override {
    EBB_TRY(alive("list", directory));
    return below().list(directory);
  }
  Result<bool> exists(const fs::path& path) override {
    EBB_TRY(alive("look at", path));
    return below().exists(path);
  }
  Result<bool> is_directory(const fs::path& path) override {
    EBB_TRY(alive("look at", path));
    return below().is_directory(path);
  }
  Result<bool> is_file(const fs::path& path) override {
    EBB_TRY(alive("look at", path));
    return below().is_file(path);
  }
  Result<std::uint64_t> free_bytes(const fs::path& directory) override {
    EBB_TRY(alive("ask for the free space of", directory));
    return below().free_bytes(directory);
  }

  void submit(std::span<const RawOp> ops) override;
  std::size_t wait(std::span<RawDone> done) override;

 private:
  enum class Touches : std::uint8_t { name, file, sync };
  // An operation that reaches the disk changed, and what its answer must become.
  struct Bent {
    RawOp asked;
    FaultKind kind{};
    int error = 0;
  };

  Result<> before(std::string_view verb, const fs::path& path, Touches touches);
  Result<> alive(std::string_view verb, const fs::path& path) const;
  // The operation as the disk gets it; nullopt when it is answered here.
  std::optional<RawOp> bend(const RawOp& op, const Fault& fault);

  std::shared_ptr<FaultPlan> plan_;
  std::deque<RawDone> answered_;        // without the disk
  std::map<std::uint64_t, Bent> bent_;  // in flight, by tag
};

Result<> FaultBackend::alive(std::string_view verb, const fs::path& path) const {
  if (!plan_->died()) return {};
  return errno_error(ECANCELED, compose("cannot {} {}", verb, path.string()));
}

Result<> FaultBackend::before(std::string_view verb, const fs::path& path, Touches touches) {
  FaultPlan::Operation operation;
  operation.durable = true;
  operation.sync = touches == Touches::sync;
  operation.name = touches == Touches::name;
  operation.path = path.string();
  const std::optional<Fault> fault = plan_->next(operation);
  if (!fault) return {};
  if (fault->kind == FaultKind::die) return alive(verb, path);
  if (fault->kind != FaultKind::fail) return {};
  return errno_error(fault->error, compose("cannot {} {}", verb, path.string()));
}

void FaultBackend::submit(std::span<const RawOp> ops) {
  std::vector<RawOp> passed;
  for (const RawOp& op : ops) {
    FaultPlan::Operation operation;
    operation.data = true;
    operation.kind = op.kind;
    operation.durable = op.kind != RawOp::Kind::read;
    operation.sync = op.kind == RawOp::Kind::sync_data;
    operation.path = path_of(op.file);
    const std::optional<Fault> fault = plan_->next(operation);
    const std::optional<RawOp> sent = fault ? bend(op, *fault) : op;
    if (sent) passed.push_back(*sent);
  }
  if (!passed.empty()) below().submit(passed);
}

std::optional<RawOp> FaultBackend::bend(const RawOp& op, const Fault& fault) {
  RawOp sent = op;
  if (fault.kind == FaultKind::late) {
    std::this_thread::sleep_for(fault.delay);
    return sent;
  }
  if (fault.kind == FaultKind::die || fault.kind == FaultKind::fail) {
    const int error = fault.kind == FaultKind::die ? ECANCELED : fault.error;
    answered_.push_back({op.tag, -error});
    return std::nullopt;
  }
  if (fault.kind == FaultKind::done) {
    bent_[op.tag] = {op, fault.kind, fault.error};
    return sent;
  }
  if (op.kind == RawOp::Kind::sync_data) return sent;
  if (fault.kind == FaultKind::stale) {
    answered_.push_back({op.tag, static_cast<std::int32_t>(op.size)});
    return std::nullopt;
  }
  const bool whole = fault.kind == FaultKind::misdirected ||
                     (fault.kind == FaultKind::torn && op.kind == RawOp::Kind::read);
  if (fault.kind == FaultKind::misdirected) {
    sent.offset = op.offset >= op.size ? op.offset - op.size : op.offset + op.size;
  }
  if (!whole) sent.size = half_of(op.size);
  if (sent.size == 0) {
    // Too small to be cut: a torn write is a lost one, a short transfer does not happen.
    if (fault.kind == FaultKind::short_transfer) return op;
    answered_.push_back({op.tag, static_cast<std::int32_t>(op.size)});
    return std::nullopt;
  }
  bent_[op.tag] = {op, fault.kind, fault.error};
  return sent;
}

std::size_t FaultBackend::wait(std::span<RawDone> done) {
  std::size_t count = 0;
  for (; count < done.size() && !answered_.empty(); ++count) {
    done[count] = answered_.front();
    answered_.pop_front();
  }
  if (count > 0) return count;
  count = below().wait(done);
  for (RawDone& one : done.first(count)) {
    const auto found = bent_.find(one.tag);
    if (found == bent_.end()) continue;
    const Bent bent = found->second;
    bent_.erase(found);
    if (bent.kind == FaultKind::done) one.result = -bent.error;
    if (one.result < 0 || bent.kind == FaultKind::short_transfer) continue;
    if (bent.kind == FaultKind::torn && bent.asked.kind == RawOp::Kind::read) {
      const std::uint32_t kept = half_of(bent.asked.size);
      std::memset(bent.asked.data + kept, 0, bent.asked.size - kept);
      continue;
    }
    one.result = static_cast<std::int32_t>(bent.asked.size);
  }
  return count;
}

}  // namespace

void FaultPlan::add(Fault fault) {
  const MutexLock lock(mutex_);
  faults_.push_back({std::move(fault), 0});
}

void FaultPlan::clear() {
  const MutexLock lock(mutex_);
  faults_.clear();
}

std::uint64_t FaultPlan::operations() const {
  const MutexLock lock(mutex_);
  return all_;
}

std::uint64_t FaultPlan::durable_operations() const {
  const MutexLock lock(mutex_);
  return durable_;
}

std::uint64_t FaultPlan::data_operations() const {
  const MutexLock lock(mutex_);
  return data_;
}

bool FaultPlan::died() const {
  const MutexLock lock(mutex_);
  return died_;
}

void FaultPlan::die_before(std::uint64_t at, std::function<void()> seen) {
  const MutexLock lock(mutex_);
  die_at_ = at;
  at_death_ = std::move(seen);
}

void FaultPlan::opened(std::int64_t files) {
  const MutexLock lock(mutex_);
  open_files_ += files;
}

std::int64_t FaultPlan::open_files() const {
  const MutexLock lock(mutex_);
  return open_files_;
}

bool FaultPlan::matches(const Fault& fault, const Operation& operation) {
  if (operation.path.find(fault.path_part) == std::string::npos) return false;
  switch (fault.on) {
    case FaultOn::any:
      return true;
    case FaultOn::durable:
      return operation.durable;
    case FaultOn::data:
      return operation.data;
    case FaultOn::read:
      return operation.data && operation.kind == RawOp::Kind::read;
    case FaultOn::write:
      return operation.data && operation.kind == RawOp::Kind::write;
    case FaultOn::sync:
      return operation.sync;
    case FaultOn::name:
      return operation.name;
  }
  return false;
}

std::optional<Fault> FaultPlan::next(const Operation& operation) {
  std::function<void()> last_look;
  std::optional<Fault> chosen;
  {
    const MutexLock lock(mutex_);
    if (died_) return Fault{.kind = FaultKind::die};
    chosen = next_alive(operation);
    died_ = chosen && chosen->kind == FaultKind::die;
    if (died_) last_look = std::move(at_death_);
  }
  if (last_look) last_look();
  return chosen;
}

std::optional<Fault> FaultPlan::next_alive(const Operation& operation) {
  const std::uint64_t number = durable_;
  ++all_;
  durable_ += operation.durable ? 1 : 0;
  data_ += operation.data ? 1 : 0;
  std::optional<Fault> chosen;
  if (operation.durable && number == die_at_) chosen = Fault{.kind = FaultKind::die};
  for (Armed& armed : faults_) {
    if (!matches(armed.fault, operation)) continue;
    const std::uint64_t index = armed.seen++;
    const Fault& fault = armed.fault;
    if (index >= fault.at && index - fault.at < fault.count && !chosen) chosen = fault;
  }
  return chosen;
}

std::unique_ptr<IoBackend> make_fault_backend(std::unique_ptr<IoBackend> inner,
                                              std::shared_ptr<FaultPlan> plan) {
  return std::make_unique<FaultBackend>(std::move(inner), std::move(plan));
}

}  // namespace ebb::libswap
