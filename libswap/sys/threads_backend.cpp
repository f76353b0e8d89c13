// The data operations as blocking pread/pwrite/fdatasync calls on a few threads: what is left where
// io_uring is forbidden. At chunks of 1 MiB and more it costs CPU, not bandwidth.
#include <unistd.h>

#include <cerrno>
#include <deque>
#include <thread>

#include "ebb/libswap/sys/mutex.h"
#include "ebb/libswap/sys/posix_backend.h"
#include "ebb/libswap/sys/thread.h"
#include "ebb/libswap/sys/when_memory.h"

namespace ebb::libswap {
namespace {

constexpr std::uint32_t kMaxThreads = 64;
constexpr std::size_t kCapacity = 256;

std::int32_t answer(ssize_t result) {
  return static_cast<std::int32_t>(result < 0 ? -errno : result);
}

class ThreadsBackend : public PosixBackend {
 public:
  ~ThreadsBackend() override {
    {
      const MutexLock lock(mutex_);
      stopping_ = true;
    }
    work_.notify_all();
    for (std::thread& thread : threads_)
      if (thread.joinable()) thread.join();
  }

  Result<> start(std::uint32_t threads) {
    threads_.resize(threads);
    for (std::thread& thread : threads_) {
      EBB_TRY_ASSIGN(thread, start_thread([this] { run(); }));
    }
    return {};
  }

  std::string_view name() const override { return "threads"; }
  std::size_t capacity() const override { return kCapacity; }

  void submit(std::span<const RawOp> ops) override {
    {
      const MutexLock lock(mutex_);
      when_memory(
          [&]() EBB_REQUIRES(mutex_) { pending_.insert(pending_.end(), ops.begin(), ops.end()); });
    }
    work_.notify_all();
  }

  std::size_t wait(std::span<RawDone> done) override {
    const MutexLock lock(mutex_);
    while (!woken_ && done_.empty()) progress_.wait(mutex_);
    woken_ = false;
    std::size_t count = 0;
    for (; count < done.size() && !done_.empty(); ++count) {
      done[count] = done_.front();
      done_.pop_front();
    }
    return count;
  }

  void wake() override {
    const MutexLock lock(mutex_);
    woken_ = true;
    progress_.notify_one();
  }

 private:
  void run() {
    const MutexLock lock(mutex_);
    while (true) {
      while (!stopping_ && pending_.empty()) work_.wait(mutex_);
      if (pending_.empty()) return;
      const RawOp op = pending_.front();
      pending_.pop_front();
      add_when_memory(done_, performed(op));
      progress_.notify_one();
    }
  }

  RawDone performed(const RawOp& op) EBB_REQUIRES(mutex_) {
    const MutexUnlock unlocked(mutex_);
    return {op.tag, perform(op)};
  }

  std::int32_t perform(const RawOp& op) const {
    const std::shared_ptr<const OpenFile> file = find(op.file);
    if (file == nullptr) return -EBADF;
    const int descriptor = file->descriptor.get();
    const off_t offset = static_cast<off_t>(op.offset);
    if (op.kind == RawOp::Kind::sync_data) return answer(::fdatasync(descriptor));
    return answer(op.kind == RawOp::Kind::read ? ::pread(descriptor, op.data, op.size, offset)
                                               : ::pwrite(descriptor, op.data, op.size, offset));
  }

  Mutex mutex_;
  Condition work_;
  Condition progress_;
  std::deque<RawOp> pending_ EBB_GUARDED_BY(mutex_);
  std::deque<RawDone> done_ EBB_GUARDED_BY(mutex_);
  bool woken_ EBB_GUARDED_BY(mutex_) = false;
  bool stopping_ EBB_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace

Result<std::unique_ptr<IoBackend>> make_threads_backend(std::uint32_t threads) {
  if (threads == 0 || threads > kMaxThreads)
    return Error{Code::usage, compose("cannot do I/O on {} threads: 1 to 64", threads)};
  auto backend = std::make_unique<ThreadsBackend>();
  EBB_TRY(backend->start(threads));
  return std::unique_ptr<IoBackend>(std::move(backend));
}

}  // namespace ebb::libswap
