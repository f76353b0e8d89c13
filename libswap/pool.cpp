#include "ebb/libswap/pool.h"

#include <atomic>
#include <chrono>
#include <exception>
#include <list>
#include <thread>
#include <utility>

#include "ebb/formats/core/check.h"
#include "ebb/libswap/sys/mutex.h"
#include "ebb/libswap/sys/process.h"
#include "ebb/libswap/sys/thread.h"
#include "ebb/libswap/sys/when_memory.h"

namespace ebb::libswap {
namespace {

// Whoever sleeps in help_until() looks again after so long, told or not: what it waits for may be a
// moment in time.
constexpr std::chrono::milliseconds kGlance{5};

// `next` jobs were handed out, `done` have returned.
struct Batch {
  std::function<void(std::size_t)> job;
  std::size_t count = 0;
  bool is_run = false;  // of run(), which is to throw what a job does
  std::size_t next = 0;
  std::size_t done = 0;
  std::exception_ptr thrown = nullptr;
};
using Batches = std::list<std::shared_ptr<Batch>>;

struct RunningChain {
  std::vector<std::shared_ptr<Batch>> stages;
  EventSource done;
  std::size_t stage = 0;
};

}  // namespace

struct Pool::Impl {
  Mutex mutex;
  Condition work;      // for workers: jobs arrived, or the end
  Condition finished;  // for run(): a batch is done
  Condition changed;   // for help_until(): jobs arrived, or somebody called wake()
  std::atomic<std::uint64_t> changes = 0;
  // Those with jobs left to hand out; the last of a batch frees what post() made.
  Batches urgent EBB_GUARDED_BY(mutex);
  std::list<RunningChain> chains EBB_GUARDED_BY(mutex);  // the first is under way
  std::shared_ptr<Batch> panels EBB_GUARDED_BY(mutex);   // its stage, with jobs left to hand out
  std::size_t running EBB_GUARDED_BY(mutex) = 0;         // jobs
  bool ending EBB_GUARDED_BY(mutex) = false;
  PoolStats stats EBB_GUARDED_BY(mutex);
  std::vector<std::thread> workers;

  void tell_all() EBB_REQUIRES(mutex) {
    ++changes;
    work.notify_all();
    changed.notify_all();
  }

  void wake() {
    const MutexLock lock(mutex);
    ++changes;
    changed.notify_all();
  }

  // For one job one worker is enough; the others would only look and sleep again.
  void tell_one() EBB_REQUIRES(mutex) {
    ++changes;
    work.notify_one();
    changed.notify_all();
  }

  std::shared_ptr<Batch> next_batch() EBB_REQUIRES(mutex) {
    return urgent.empty() ? panels : urgent.front();
  }

  // What a job of run() threw.
  static std::exception_ptr made(const Batch& batch, std::size_t index) noexcept {
    if (!batch.is_run) {
      batch.job(index);
      return nullptr;
    }
    try {
      batch.job(index);
    } catch (...) {
      return std::current_exception();
    }
    return nullptr;
  }

  // Takes one job of `batch` and runs it outside the lock.
  void run_one(const std::shared_ptr<Batch>& batch) EBB_REQUIRES(mutex) {
    const std::size_t index = batch->next++;
    ++stats.jobs;
    const bool panel = batch == panels;
    if (batch->next == batch->count) {
      if (panel)
        panels.reset();
      else
        urgent.remove(batch);
    }
    ++running;
    mutex.unlock();
    std::exception_ptr thrown = made(*batch, index);
    mutex.lock();
    --running;
    if (thrown) batch->thrown = std::move(thrown);
    if (++batch->done != batch->count) return;
    if (panel) end_stage();
    finished.notify_all();
  }

  void end_stage() EBB_REQUIRES(mutex) {
    ++chains.front().stage;
    begin_stage();
  }

  // The next stage that has jobs, of this chain or the next one. Events pass outside the lock: what
  // waits for them may come here again. Nothing here needs memory.
  void begin_stage() EBB_REQUIRES(mutex) {
    std::list<RunningChain> ended;
    while (!chains.empty() && !begin_stage_of(chains.front()))
      ended.splice(ended.end(), chains, chains.begin());
    tell_all();
    if (ended.empty()) return;
    mutex.unlock();
    for (const RunningChain& chain : ended) chain.done.pass();
    mutex.lock();
    tell_all();
  }

  bool begin_stage_of(RunningChain& chain) EBB_REQUIRES(mutex) {
    const auto& stages = chain.stages;
    while (chain.stage < stages.size() && stages[chain.stage]->count == 0) ++chain.stage;
    if (chain.stage == stages.size()) return false;
    panels = stages[chain.stage];
    return true;
  }

  void work_loop() {
    const MutexLock lock(mutex);
    while (true) {
      while (!ending && next_batch() == nullptr) work.wait(mutex);
      const auto batch = next_batch();
      if (batch == nullptr) return;
      run_one(batch);
    }
  }
};

Pool::Pool() : impl_(std::make_shared<Impl>()) {}

Result<std::unique_ptr<Pool>> Pool::start(std::uint32_t threads) {
  auto pool = std::make_unique<Pool>();
  pool->impl_->workers.reserve(threads);  // before there are any, which are to be joined
  for (std::uint32_t i = 1; i < threads; ++i) {
    EBB_TRY_ASSIGN(std::thread worker,
                   start_thread([impl = pool->impl_.get()] { impl->work_loop(); }));
    pool->impl_->workers.push_back(std::move(worker));
  }
  return pool;
}

Pool::~Pool() {
  {
    const MutexLock lock(impl_->mutex);
    EBB_CHECK(impl_->urgent.empty() && impl_->chains.empty());
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
    const MutexLock lock(impl_->mutex);
    impl_->stats.jobs += count;
    return;
  }
  const auto batch = std::make_shared<Batch>(Batch{[&job](std::size_t i) { job(i); }, count, true});
  const MutexLock lock(impl_->mutex);
  impl_->urgent.push_back(batch);
  impl_->tell_all();
  // The caller works too: run() from inside a job cannot wait for a worker that waits for it.
  while (batch->next < count) impl_->run_one(batch);
  while (batch->done < count) impl_->finished.wait(impl_->mutex);
  if (batch->thrown) std::rethrow_exception(batch->thrown);
}

void Pool::post(std::function<void()> job) {
  Batches posted;
  when_memory([&] {
    posted.resize(1);
    posted.front() = std::make_shared<Batch>(Batch{[job](std::size_t) { job(); }, 1});
  });
  const MutexLock lock(impl_->mutex);
  impl_->urgent.splice(impl_->urgent.end(), posted);
  impl_->tell_one();
}

Event Pool::begin(Chain chain) {
  std::list<RunningChain> added(1);
  for (Stage& stage : chain)
    added.front().stages.push_back(
        std::make_shared<Batch>(Batch{std::move(stage.job), stage.count}));
  const Event done = added.front().done.event();
  const MutexLock lock(impl_->mutex);
  impl_->chains.splice(impl_->chains.end(), added);
  ++impl_->stats.chains;
  if (impl_->chains.size() == 1) impl_->begin_stage();
  return done;
}

double Pool::help_until(const std::function<bool()>& ready) {
  double slept = 0;
  while (true) {
    const std::uint64_t seen = impl_->changes;
    if (ready()) return slept;
    const MutexLock lock(impl_->mutex);
    if (const auto batch = impl_->next_batch()) {
      impl_->run_one(batch);
    } else if (seen == impl_->changes) {
      const auto begin = std::chrono::steady_clock::now();
      impl_->changed.wait_for(impl_->mutex, kGlance);
      const double seconds = seconds_since(begin);
      impl_->stats.slept_s += seconds;
      slept += seconds;
    }
  }
}

void Pool::help_until_idle() {
  help_until([this] {
    const MutexLock lock(impl_->mutex);
    return impl_->running == 0 && impl_->urgent.empty() && impl_->chains.empty();
  });
}

double Pool::help_until(const Event& event) {
  if (event.passed()) return 0;
  when_memory([&] { event.then([impl = impl_] { impl->wake(); }); });
  return help_until([&] { return event.passed(); });
}

PoolStats Pool::stats() const {
  const MutexLock lock(impl_->mutex);
  return impl_->stats;
}

std::vector<Stat> stats_of(const PoolStats& stats) {
  constexpr auto kCounter = StatKind::counter;
  return {
      {"pool_jobs", kCounter, "Jobs that computing threads ran.", stats.jobs},
      {"pool_chains", kCounter, "Matrices orthogonalized by the pool.", stats.chains},
      {"pool_slept_seconds", kCounter, "Sleep of threads that waited with nothing to do.",
       stats.slept_s},
  };
}

void Pool::wake() { impl_->wake(); }

}  // namespace ebb::libswap
