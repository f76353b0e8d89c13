#include "ebb/libswap/write/segment_writer.h"

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "ebb/formats/core/units.h"
#include "ebb/libswap/sys/aligned_buffer.h"
#include "ebb/libswap/sys/mutex.h"
#include "ebb/libswap/sys/thread.h"
#include "ebb/libswap/sys/when_memory.h"
#include "ebb/libswap/write/unwritten.h"

namespace ebb::libswap {

namespace {

constexpr auto kLookInterval = std::chrono::milliseconds(100);  // for a cancellation
constexpr std::size_t kFilesInBatch = OutputFiles::kMostOpen / 2;

class SegmentWriter {
 public:
  SegmentWriter(IoQueue& io, SegmentSource& source, std::span<const OutputFile> files,
                const fs::path& directory, const SegmentWriterOptions& options);
  Result<> run();

 private:
  struct Buffer {
    std::span<std::byte> bytes;
    bool in_flight = false;  // mutex_ guards it
  };
  struct Worker {
    AlignedBuffer memory;
    std::vector<Buffer> buffers;
    std::thread thread;
  };

  Result<> start();
  void work(Worker& worker);
  Result<> make(const Segment& segment, Buffer& buffer);
  std::optional<Segment> next_segment();
  bool wait_for(const Buffer& buffer);
  void finished(Buffer& buffer, WrittenSegment written, Result<> result) EBB_EXCLUDES(mutex_);
  void fail(Error error) EBB_EXCLUDES(mutex_);

  Result<> oversee();
  Result<> take(std::vector<WrittenSegment> written);
  Result<> commit();

  SegmentSource& source_;
  std::span<const OutputFile> files_;
  const SegmentWriterOptions& options_;
  const Segments& segments_;
  OutputFiles outputs_;
  std::vector<Worker> workers_;
  Unwritten unwritten_;  // the committer's own, but for what is constant: whether one is skipped

  Mutex mutex_;
  Condition changed_;  // what the workers wait for
  Condition news_;     // what the committer waits for
  std::uint64_t next_ EBB_GUARDED_BY(mutex_) = 0;
  std::uint32_t working_ EBB_GUARDED_BY(mutex_) = 0;
  std::vector<WrittenSegment> done_ EBB_GUARDED_BY(mutex_);
  std::optional<Error> failure_ EBB_GUARDED_BY(mutex_);  // the first one
};

SegmentWriter::SegmentWriter(IoQueue& io, SegmentSource& source, std::span<const OutputFile> files,
                             const fs::path& directory, const SegmentWriterOptions& options)
    : source_(source),
      files_(files),
      options_(options),
      segments_(source.segments()),
      outputs_(io, directory, files, options.files),
      unwritten_(segments_, static_cast<std::uint32_t>(files.size())) {
  for (const WrittenSegment& written : options.durable_before) {
    const Segment segment = segments_.at(written.index);
    unwritten_.skip(segment, written.index);
    source_.resume(segment, written);
    options_.block_crcs.add(files_[segment.file], written.block_crcs);
  }
}

Result<> SegmentWriter::run() {
  if (Result<> started = or_no_memory([this] { return start(); }); !started)
    fail(std::move(started).error());
  if (Result<> overseen = or_no_memory([this] { return oversee(); }); !overseen)
    fail(std::move(overseen).error());
  for (Worker& worker : workers_)
    if (worker.thread.joinable()) worker.thread.join();
  const MutexLock lock(mutex_);  // by now nobody else is here
  if (failure_ && failure_->code == Code::cancelled) {
    if (Result<> taken = take(std::exchange(done_, {})); taken) static_cast<void>(commit());
  }
  if (failure_) return *failure_;
  return {};
}

Result<> SegmentWriter::start() {
  if (unwritten_.left() == 0) return {};
  const std::uint64_t buffer =
      formats::align_up(source_.buffer_bytes(), OutputFiles::kLargestBlock);
  workers_.resize(std::min<std::uint64_t>(std::max(options_.workers, 1u), segments_.count()));
  for (Worker& worker : workers_) {
    worker.buffers.resize(source_.buffers());
    EBB_TRY_ASSIGN(worker.memory, AlignedBuffer::allocate(buffer * worker.buffers.size()));
    for (std::size_t i = 0; i < worker.buffers.size(); ++i)
      worker.buffers[i].bytes = worker.memory.bytes().subspan(i * buffer, buffer);
  }
  const MutexLock lock(mutex_);  // nobody ends before it is counted
  for (Worker& worker : workers_) {
    EBB_TRY_ASSIGN(worker.thread, start_thread([this, &worker] { work(worker); }));
    ++working_;
  }
  return {};
}

void SegmentWriter::work(Worker& worker) {
  for (std::size_t turn = 0;; turn = (turn + 1) % worker.buffers.size()) {
    Buffer& buffer = worker.buffers[turn];
    if (!wait_for(buffer)) break;
    const std::optional<Segment> segment = next_segment();
    if (!segment) break;
    if (Result<> made = or_no_memory([&] { return make(*segment, buffer); }); !made) {
      fail(std::move(made).error());
      break;
    }
  }
  for (const Buffer& buffer : worker.buffers) static_cast<void>(wait_for(buffer));
  const MutexLock lock(mutex_);
  --working_;
  news_.notify_all();
}

std::optional<Segment> SegmentWriter::next_segment() {
  const MutexLock lock(mutex_);
  while (next_ < segments_.count() && unwritten_.skipped(next_)) ++next_;
  if (failure_ || next_ == segments_.count()) return std::nullopt;
  return segments_.at(next_++);
}

// False when there is no reason to go on.
bool SegmentWriter::wait_for(const Buffer& buffer) {
  const MutexLock lock(mutex_);
  while (buffer.in_flight) changed_.wait(mutex_);
  return !failure_;
}

Result<> SegmentWriter::make(const Segment& segment, Buffer& buffer) {
  EBB_TRY(outputs_.ensure_open(segment.file));
  EBB_TRY_ASSIGN(MadeSegment made,
                 source_.make(segment, buffer.bytes, outputs_.alignment(segment.file)));
  std::function<void(Result<>)> done = [this, &buffer, written = std::move(made.written),
                                        memory = std::move(made.memory)](Result<> result) mutable {
    memory.reset();
    finished(buffer, std::move(written), std::move(result));
  };
  {
    const MutexLock lock(mutex_);
    buffer.in_flight = true;  // behind what may find no memory
  }
  if (made.bytes.empty())
    done({});
  else
    outputs_.write(segment.file, made.offset, made.bytes, std::move(done));
  return {};
}

// On the queue's thread, too.
void SegmentWriter::finished(Buffer& buffer, WrittenSegment written, Result<> result) {
  const bool good = result.has_value();
  if (!good) fail(std::move(result).error());
  const MutexLock lock(mutex_);
  buffer.in_flight = false;
  if (good) add_when_memory(done_, std::move(written));
  changed_.notify_all();
  news_.notify_all();  // inside the lock: who waits may end this object
}

void SegmentWriter::fail(Error error) {
  {
    const MutexLock lock(mutex_);
    if (!failure_) failure_ = std::move(error);
    changed_.notify_all();
    news_.notify_all();
  }
  outputs_.stop();
  source_.stop();
}

// --- the committer ---------------------------------------------------------------------------

Result<> SegmentWriter::oversee() {
  while (unwritten_.left() > 0) {
    std::vector<WrittenSegment> written;
    {
      const MutexLock lock(mutex_);
      if (!failure_ && done_.empty() && working_ > 0) news_.wait_for(mutex_, kLookInterval);
      if (failure_) return *failure_;
      written.swap(done_);
    }
    EBB_TRY(take(std::move(written)));
    if (options_.cancel != nullptr && options_.cancel->load(std::memory_order_relaxed))
      return stopped_on_request();
    if (unwritten_.complete().size() >= kFilesInBatch ||
        std::chrono::steady_clock::now() - unwritten_.committed_at() >= options_.commit_interval)
      EBB_TRY(commit());
  }
  return commit();
}

Result<> SegmentWriter::take(std::vector<WrittenSegment> written) {
  for (WrittenSegment& one : written) {
    const Segment segment = segments_.at(one.index);
    const std::uint32_t file = segment.file;
    if (unwritten_.took(file)) {
      EBB_TRY(outputs_.cut(file, source_.size_of(file)));
      unwritten_.completed(file);
    }
    options_.block_crcs.add(files_[file], one.block_crcs);
    if (options_.written) options_.written(segment, one.shares);
    if (options_.durable) unwritten_.tell(std::move(one));
  }
  return {};
}

// Everything that was taken so far becomes durable; complete files are closed.
Result<> SegmentWriter::commit() {
  EBB_TRY(outputs_.sync(unwritten_.touched()));
  for (const std::uint32_t file : unwritten_.complete()) EBB_TRY(outputs_.close(file));
  unwritten_.files_are_durable();
  if (options_.durable && !unwritten_.to_tell().empty())
    EBB_TRY(options_.durable(unwritten_.to_tell()));
  unwritten_.committed();
  return {};
}

}  // namespace

Error stopped_on_request() {
  return {Code::cancelled, "stopped on request before anything was published",
          "the same command starts again"};
}

Result<> write_segments(IoQueue& io, SegmentSource& source, std::span<const OutputFile> files,
                        const fs::path& directory, const SegmentWriterOptions& options) {
  if (files.empty()) return {};
  return SegmentWriter(io, source, files, directory, options).run();
}

}  // namespace ebb::libswap
