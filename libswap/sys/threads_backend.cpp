// The data operations as blocking pread/pwrite/fdatasync calls on a few threads: what is left where
// io_uring is forbidden. At chunks of 1 MiB and more it costs CPU, not bandwidth.
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <deque>
#include <thread>

#include "ebb/libswap/sys/posix_backend.h"
#include "ebb/libswap/sys/thread.h"

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
      const std::lock_guard guard(mutex_);
      stopping_ = true;
    }
    work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  Result<> start(std::uint32_t threads) {
    for (std::uint32_t i = 0; i < threads; ++i) {
      EBB_TRY_ASSIGN(std::thread thread, start_thread([this] { run(); }));
      threads_.push_back(std::move(thread));
    }
    return {};
  }

  std::string_view name() const override { return "threads"; }
  std::size_t capacity() const override { return kCapacity; }

  void submit(std::span<const RawOp> ops) override {
    {
      const std::lock_guard guard(mutex_);
      pending_.insert(pending_.end(), ops.begin(), ops.end());
    }
    work_.notify_all();
  }

  std::size_t wait(std::span<RawDone> done) override {
    std::unique_lock lock(mutex_);
    progress_.wait(lock, [this] { return woken_ || !done_.empty(); });
    woken_ = false;
    std::size_t count = 0;
    for (; count < done.size() && !done_.empty(); ++count) {
      done[count] = done_.front();
      done_.pop_front();
    }
    return count;
  }

  void wake() override {
    const std::lock_guard guard(mutex_);
    woken_ = true;
    progress_.notify_one();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      work_.wait(lock, [this] { return stopping_ || !pending_.empty(); });
      if (pending_.empty()) return;
      const RawOp op = pending_.front();
      pending_.pop_front();
      lock.unlock();
      const RawDone done{op.tag, perform(op)};
      lock.lock();
      done_.push_back(done);
      progress_.notify_one();
    }
  }

  std::int32_t perform(const RawOp& op) const {
    const std::shared_ptr<const OpenFile> file = find(op.file);
    if (file == nullptr) return -EBADF;
    const int descriptor = file->descriptor.get();
    const off_t offset = static_cast<off_t>(op.offset);
    switch (op.kind) {
      case RawOp::Kind::read:
        return answer(::pread(descriptor, op.data, op.size, offset));
      case RawOp::Kind::write:
        return answer(::pwrite(descriptor, op.data, op.size, offset));
      case RawOp::Kind::sync_data:
        return answer(::fdatasync(descriptor));
    }
    return -EINVAL;
  }

  std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable progress_;
  std::deque<RawOp> pending_;
  std::deque<RawDone> done_;
  bool woken_ = false;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

Result<std::unique_ptr<IoBackend>> make_threads_backend(std::uint32_t threads) {
  if (threads == 0 || threads > kMaxThreads) {
    return Error{Code::usage, compose("cannot do I/O on {} threads: 1 to 64", threads), ""};
  }
  auto backend = std::make_unique<ThreadsBackend>();
  EBB_TRY(backend->start(threads));
  return std::unique_ptr<IoBackend>(std::move(backend));
}

}  // namespace ebb::libswap
