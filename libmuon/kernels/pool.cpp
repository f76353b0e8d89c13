#include <list>
#include <thread>

#include "ebb/libmuon/kernels/kernels.h"
#include "ebb/libswap/sys/mutex.h"
#include "ebb/libswap/sys/thread.h"

namespace ebb::libmuon {
namespace {

// One run() call. `next` jobs were handed out, `done` have returned.
struct Batch {
  const std::function<void(std::size_t)>& job;
  std::size_t count;
  std::size_t next = 0;
  std::size_t done = 0;
};

}  // namespace

struct Pool::Impl {
  libswap::Mutex mutex;
  libswap::Condition work;                          // a batch arrived, or the end
  libswap::Condition finished;                      // a batch is done
  std::list<Batch*> batches EBB_GUARDED_BY(mutex);  // those with jobs left to hand out
  bool ending EBB_GUARDED_BY(mutex) = false;
  std::vector<std::thread> workers;

  // Takes one job of `batch` and runs it outside the lock.
  void run_one(Batch& batch) EBB_REQUIRES(mutex) {
    const std::size_t index = batch.next++;
    if (batch.next == batch.count) batches.remove(&batch);
    mutex.unlock();
    batch.job(index);
    mutex.lock();
    if (++batch.done == batch.count) finished.notify_all();
  }

  void work_loop() {
    const libswap::MutexLock lock(mutex);
    while (true) {
      while (!ending && batches.empty()) work.wait(mutex);
      if (batches.empty()) return;
      run_one(*batches.front());
    }
  }
};

Pool::Pool() : impl_(std::make_unique<Impl>()) {}

Result<std::unique_ptr<Pool>> Pool::start(std::uint32_t threads) {
  auto pool = std::make_unique<Pool>();
  for (std::uint32_t i = 1; i < threads; ++i) {
    EBB_TRY_ASSIGN(std::thread worker,
                   libswap::start_thread([impl = pool->impl_.get()] { impl->work_loop(); }));
    pool->impl_->workers.push_back(std::move(worker));
  }
  return pool;
}

Pool::~Pool() {
  {
    const libswap::MutexLock lock(impl_->mutex);
    impl_->ending = true;
  }
  impl_->work.notify_all();
  for (std::thread& worker : impl_->workers) worker.join();
}

std::uint32_t Pool::threads() const {
  return static_cast<std::uint32_t>(impl_->workers.size()) + 1;
}

void Pool::run(std::size_t count, const std::function<void(std::size_t)>& job) {
  if (count <= 1 || impl_->workers.empty()) {
    for (std::size_t i = 0; i < count; ++i) job(i);
    return;
  }
  Batch batch{.job = job, .count = count};
  const libswap::MutexLock lock(impl_->mutex);
  impl_->batches.push_back(&batch);
  impl_->work.notify_all();
  // The caller works too: run() from inside a job cannot wait for a worker that waits for it.
  while (batch.next < batch.count) impl_->run_one(batch);
  while (batch.done < batch.count) impl_->finished.wait(impl_->mutex);
}

}  // namespace ebb::libmuon
