#include "ebb/libswap/queue/io_queue.h"

#include <thread>
#include <vector>

#include "ebb/libswap/queue/io_batch.h"
#include "ebb/libswap/queue/io_scheduler.h"
#include "ebb/libswap/sys/home_process.h"
#include "ebb/libswap/sys/mutex.h"
#include "ebb/libswap/sys/posix_backend.h"
#include "ebb/libswap/sys/process.h"
#include "ebb/libswap/sys/thread.h"
#include "ebb/libswap/sys/when_memory.h"

namespace ebb::libswap {
namespace {

constexpr std::uint32_t kThreads =
    8;  // as many calls at a time as the default bytes in flight hold
constexpr std::uint32_t kMinChunk = 4u << 10;
constexpr std::uint32_t kMaxChunk = 16u << 20;

Result<> check_options(const IoQueue::Options& options) {
  const std::uint32_t chunk = options.chunk_bytes;
  if (chunk < kMinChunk || chunk > kMaxChunk || chunk % kMinChunk != 0) {
    return Error{
        Code::usage,
        compose("cannot cut I/O into chunks of {} bytes: a multiple of 4096 up to 16 MiB is needed",
                chunk)};
  }
  if (options.background_share == 0)
    return Error{Code::usage, "the background share 1/0 does not exist"};
  return {};
}

Result<> submit_and_wait(IoQueue& queue, IoRequest request) {
  IoBatch batch;
  request.done = batch.add();
  queue.submit(std::move(request));
  return batch.wait();
}

}  // namespace

struct IoQueue::Impl {
  Impl(std::unique_ptr<IoBackend> used, const Options& options)
      : backend(std::move(used)), scheduler(*backend, options), done(backend->capacity()) {}

  void run();
  // Moves what was submitted into the scheduler; false when it is time to leave.
  bool take_incoming();

  std::unique_ptr<IoBackend> backend;
  IoScheduler scheduler;      // the thread's own
  std::vector<RawDone> done;  // this, too
  const HomeProcess process{"I/O queue"};
  std::thread thread;

  mutable Mutex mutex;
  std::vector<IoRequest> incoming EBB_GUARDED_BY(mutex);
  std::vector<std::function<void()>> tasks EBB_GUARDED_BY(mutex);
  bool stopping EBB_GUARDED_BY(mutex) = false;
  IoStats stats EBB_GUARDED_BY(mutex);
};

bool IoQueue::Impl::take_incoming() {
  std::vector<IoRequest> taken;
  std::vector<std::function<void()>> here;
  bool leave = false;
  {
    const MutexLock lock(mutex);
    taken.swap(incoming);
    here.swap(tasks);
    leave = stopping && taken.empty() && here.empty() && scheduler.idle();
  }
  for (const auto& task : here) task();
  for (IoRequest& request : taken) when_memory([&] { scheduler.add(std::move(request)); });
  return !leave;
}

void IoQueue::Impl::run() {
  constexpr double kPauseSeconds = 0.001;
  while (take_incoming()) {
    if (scheduler.take_pause()) sleep_for_seconds(kPauseSeconds);
    const std::vector<RawOp>& ops = scheduler.next_operations();
    if (!ops.empty()) backend->submit(ops);
    const std::size_t count = scheduler.has_answers() ? 0 : backend->wait(done);
    for (std::size_t i = 0; i < count; ++i) scheduler.complete(done[i]);
    {
      const MutexLock lock(mutex);  // before the answers, so that who gets one finds it counted
      stats = scheduler.stats();
    }
    scheduler.answer_finished();
  }
}

Result<std::unique_ptr<IoQueue>> IoQueue::start(std::unique_ptr<IoBackend> backend,
                                                const Options& options) {
  EBB_TRY(check_options(options));
  std::unique_ptr<IoQueue> queue(new IoQueue(std::make_unique<Impl>(std::move(backend), options)));
  Impl* const impl = queue->impl_.get();
  EBB_TRY_ASSIGN(impl->thread, start_thread([impl] { impl->run(); }));
  return queue;
}

IoQueue::IoQueue(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

IoQueue::~IoQueue() {
  if (impl_->process.here() && impl_->thread.joinable()) {
    {
      const MutexLock lock(impl_->mutex);
      impl_->stopping = true;
    }
    impl_->backend->wake();
    impl_->thread.join();
  }
  impl_->process.let_go(std::move(impl_));
}

void IoQueue::submit(IoRequest request) {
  if (Result<> well = impl_->process.check(); !well) return request.done(std::move(well));
  bool first = false;
  {
    const MutexLock lock(impl_->mutex);
    first = impl_->incoming.empty();
    add_when_memory(impl_->incoming, std::move(request));
  }
  // A later one finds the wake-up of the first still unanswered.
  if (first && std::this_thread::get_id() != impl_->thread.get_id()) impl_->backend->wake();
}

Result<> IoQueue::read(FileId file, std::uint64_t offset, std::span<std::byte> into,
                       Priority priority) {
  EBB_CHECK(std::this_thread::get_id() != impl_->thread.get_id());
  return submit_and_wait(*this, {RawOp::Kind::read, file, offset, into, priority, {}});
}

Result<> IoQueue::write(FileId file, std::uint64_t offset, std::span<const std::byte> from,
                        Priority priority) {
  EBB_CHECK(std::this_thread::get_id() != impl_->thread.get_id());
  // One request type serves both directions; a write never stores through this pointer.
  const std::span<std::byte> data(const_cast<std::byte*>(from.data()), from.size());
  return submit_and_wait(*this, {RawOp::Kind::write, file, offset, data, priority, {}});
}

Result<> IoQueue::run_there(const std::function<Result<>(IoBackend&)>& task) {
  EBB_CHECK(std::this_thread::get_id() != impl_->thread.get_id());
  EBB_TRY(impl_->process.check());
  IoBatch batch;
  std::function<void(Result<>)> done;
  const auto run = [&] { done(or_no_memory([&] { return task(*impl_->backend); })); };
  {
    const MutexLock lock(impl_->mutex);
    impl_->tasks.emplace_back([&run] { run(); });
    done = batch.add();  // behind what may find no memory
  }
  impl_->backend->wake();
  return batch.wait();
}

Result<> IoQueue::register_buffers(std::span<std::byte> memory, std::uint64_t unit) {
  return run_there([=](IoBackend& there) { return there.register_buffers(memory, unit); });
}

void IoQueue::unregister_buffers(std::span<std::byte> memory) {
  when_memory([&] {
    static_cast<void>(run_there([=](IoBackend& there) -> Result<> {
      there.unregister_buffers(memory);
      return {};
    }));
  });
}

Result<> IoQueue::sync_data(FileId file) {
  EBB_CHECK(std::this_thread::get_id() != impl_->thread.get_id());
  return submit_and_wait(*this, {RawOp::Kind::sync_data, file, 0, {}, Priority::step, {}});
}

IoBackend& IoQueue::backend() { return *impl_->backend; }

IoStats IoQueue::stats() const {
  if (!impl_->process.here()) return {};
  const MutexLock lock(impl_->mutex);
  return impl_->stats;
}

std::vector<Stat> stats_of(const IoStats& stats) {
  constexpr auto kCounter = StatKind::counter;
  return {
      {"io_read_bytes", kCounter, "Bytes read from files.", stats.read_bytes},
      {"io_written_bytes", kCounter, "Bytes written to files.", stats.written_bytes},
      {"io_syncs", kCounter, "Files made durable.", stats.syncs},
      {"io_operations", kCounter, "Operations given to the kernel.", stats.operations},
      {"io_short_transfers", kCounter, "Transfers that moved less than asked.",
       stats.short_transfers},
      {"io_retries", kCounter, "Operations repeated after EINTR or EAGAIN.", stats.retries},
  };
}

Result<ChosenBackend> open_backend(BackendChoice choice) {
  std::string note;
  if (choice != BackendChoice::threads) {
    Result<std::unique_ptr<IoBackend>> uring = make_uring_backend();
    if (uring) return ChosenBackend{*std::move(uring), ""};
    if (choice == BackendChoice::uring) return std::move(uring).error();
    note = compose("{}; using {} I/O threads instead", uring.error().message, kThreads);
  }
  EBB_TRY_ASSIGN(std::unique_ptr<IoBackend> threads, make_threads_backend(kThreads));
  return ChosenBackend{std::move(threads), std::move(note)};
}

}  // namespace ebb::libswap
