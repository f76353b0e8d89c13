#include "ebb/libswap/write/piece_writer.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "ebb/formats/core/units.h"
#include "ebb/libswap/sys/aligned_buffer.h"
#include "ebb/libswap/sys/mutex.h"
#include "ebb/libswap/sys/thread.h"

namespace ebb::libswap {

namespace {

constexpr auto kLookInterval = std::chrono::milliseconds(100);  // for a cancellation
constexpr std::size_t kFilesInBatch = OutputFiles::kMostOpen / 2;

struct Written {
  Piece piece;
  FinishedPiece finished;
};

bool is_cancelled(const std::optional<Error>& error) {
  return error && error->code == Code::cancelled;
}

class Writing {
 public:
  Writing(IoQueue& io, PieceMaker& maker, std::span<const OutputFile> files,
          const fs::path& directory, const PieceWork& work);
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
  Result<> make(const Piece& piece, Buffer& buffer);
  std::optional<Piece> next_piece();
  bool wait_for(const Buffer& buffer);
  void finished(Buffer& buffer, Written written, Result<> result);
  void fail(Error error);

  Result<> oversee();
  Result<> take(std::vector<Written> written);
  Result<> commit();
  void join();

  PieceMaker& maker_;
  std::span<const OutputFile> files_;
  const PieceWork& options_;
  const Pieces& pieces_;
  std::vector<bool> skipped_;  // pieces that are finished already
  OutputFiles outputs_;
  std::vector<Worker> workers_;

  // The committer's own.
  std::vector<std::uint64_t> missing_;   // pieces not written, by file
  std::vector<std::uint32_t> touched_;   // files written to since the last commit
  std::vector<std::uint32_t> complete_;  // those of them with nothing missing
  std::vector<FinishedPiece> written_;   // since the last commit
  std::uint64_t left_ = 0;               // pieces not written
  std::chrono::steady_clock::time_point committed_ = std::chrono::steady_clock::now();

  Mutex mutex_;
  Condition changed_;  // what the workers wait for
  Condition news_;     // what the committer waits for
  std::uint64_t next_ EBB_GUARDED_BY(mutex_) = 0;
  std::uint32_t working_ EBB_GUARDED_BY(mutex_) = 0;
  std::vector<Written> done_ EBB_GUARDED_BY(mutex_);
  std::optional<Error> failure_ EBB_GUARDED_BY(mutex_);  // the first one
};

Writing::Writing(IoQueue& io, PieceMaker& maker, std::span<const OutputFile> files,
                 const fs::path& directory, const PieceWork& work)
    : maker_(maker),
      files_(files),
      options_(work),
      pieces_(maker.pieces()),
      skipped_(pieces_.count(), false),
      outputs_(io, directory, files,
               {work.piece_bytes, work.priority, work.creation, work.reservation}),
      left_(pieces_.count()) {
  for (std::uint32_t file = 0; file < files.size(); ++file)
    missing_.push_back(pieces_.count_of(file));
  for (const FinishedPiece& finished : work.finished) {
    const Piece piece = pieces_.at(finished.index);
    skipped_[finished.index] = true;
    --missing_[piece.file];
    --left_;
    maker_.resume(piece, finished);
    if (options_.blocks != nullptr) options_.blocks->add(files_[piece.file], finished.blocks);
  }
}

Result<> Writing::run() {
  Result<> started = start();
  if (!started) fail(started.error());
  Result<> overseen = oversee();
  if (!overseen) fail(overseen.error());
  join();
  const MutexLock lock(mutex_);  // by now nobody else is here
  if (is_cancelled(failure_)) {
    if (Result<> taken = take(std::exchange(done_, {})); taken) static_cast<void>(commit());
  }
  if (failure_) return *failure_;
  return {};
}

Result<> Writing::start() {
  if (left_ == 0) return {};
  const std::uint64_t buffer = formats::align_up(maker_.buffer_bytes(), OutputFiles::kLargestBlock);
  workers_.resize(std::min<std::uint64_t>(std::max(options_.workers, 1u), pieces_.count()));
  for (Worker& worker : workers_) {
    worker.buffers.resize(maker_.buffers());
    EBB_TRY_ASSIGN(worker.memory, AlignedBuffer::allocate(buffer * worker.buffers.size()));
    for (std::size_t i = 0; i < worker.buffers.size(); ++i)
      worker.buffers[i].bytes = worker.memory.bytes().subspan(i * buffer, buffer);
  }
  for (Worker& worker : workers_) {
    {
      const MutexLock lock(mutex_);
      ++working_;
    }
    auto thread = start_thread([this, &worker] { work(worker); });
    if (!thread) {
      const MutexLock lock(mutex_);
      --working_;
      return std::move(thread).error();
    }
    worker.thread = *std::move(thread);
  }
  return {};
}

void Writing::work(Worker& worker) {
  for (std::size_t turn = 0;; turn = (turn + 1) % worker.buffers.size()) {
    Buffer& buffer = worker.buffers[turn];
    if (!wait_for(buffer)) break;
    const std::optional<Piece> piece = next_piece();
    if (!piece) break;
    if (Result<> made = make(*piece, buffer); !made) {
      fail(std::move(made).error());
      break;
    }
  }
  for (const Buffer& buffer : worker.buffers) static_cast<void>(wait_for(buffer));
  const MutexLock lock(mutex_);
  --working_;
  news_.notify_all();
}

std::optional<Piece> Writing::next_piece() {
  const MutexLock lock(mutex_);
  while (next_ < pieces_.count() && skipped_[next_]) ++next_;
  if (failure_ || next_ == pieces_.count()) return std::nullopt;
  return pieces_.at(next_++);
}

// False when there is no reason to go on.
bool Writing::wait_for(const Buffer& buffer) {
  const MutexLock lock(mutex_);
  while (buffer.in_flight) changed_.wait(mutex_);
  return !failure_;
}

Result<> Writing::make(const Piece& piece, Buffer& buffer) {
  EBB_TRY(outputs_.ensure_open(piece.file));
  EBB_TRY_ASSIGN(MadePiece made, maker_.make(piece, {buffer.bytes, outputs_.granule(piece.file)}));
  Written written{piece, std::move(made.finished)};
  {
    const MutexLock lock(mutex_);
    buffer.in_flight = true;
  }
  if (made.bytes.empty()) {
    finished(buffer, std::move(written), {});
    return {};
  }
  outputs_.write(piece.file, made.offset, made.bytes,
                 [this, &buffer, written = std::move(written),
                  memory = std::move(made.memory)](Result<> result) mutable {
                   memory.reset();
                   finished(buffer, std::move(written), std::move(result));
                 });
  return {};
}

// On the queue's thread, too.
void Writing::finished(Buffer& buffer, Written written, Result<> result) {
  const bool good = result.has_value();
  if (!good) fail(std::move(result).error());
  const MutexLock lock(mutex_);
  buffer.in_flight = false;
  if (good) done_.push_back(std::move(written));
  changed_.notify_all();
  news_.notify_all();  // inside the lock: who waits may end this object
}

void Writing::fail(Error error) {
  {
    const MutexLock lock(mutex_);
    if (!failure_) failure_ = std::move(error);
    changed_.notify_all();
    news_.notify_all();
  }
  outputs_.stop();
  maker_.stop();
}

// --- the committer ---------------------------------------------------------------------------

Result<> Writing::oversee() {
  while (left_ > 0) {
    std::vector<Written> written;
    {
      const MutexLock lock(mutex_);
      if (!failure_ && done_.empty() && working_ > 0) news_.wait_for(mutex_, kLookInterval);
      if (failure_) return *failure_;
      written.swap(done_);
    }
    EBB_TRY(take(std::move(written)));
    if (options_.cancel != nullptr && options_.cancel->load(std::memory_order_relaxed))
      return stopped_on_request();
    if (complete_.size() >= kFilesInBatch ||
        std::chrono::steady_clock::now() - committed_ >= options_.commit_interval)
      EBB_TRY(commit());
  }
  return commit();
}

Result<> Writing::take(std::vector<Written> written) {
  for (Written& one : written) {
    const std::uint32_t file = one.piece.file;
    --left_;
    touched_.push_back(file);
    if (--missing_[file] == 0) {
      EBB_TRY(outputs_.cut(file, maker_.size_of(file)));
      complete_.push_back(file);
    }
    if (options_.blocks != nullptr) options_.blocks->add(files_[file], one.finished.blocks);
    if (options_.written) options_.written(one.piece, one.finished.shares);
    if (options_.durable) written_.push_back(std::move(one.finished));
  }
  return {};
}

// Everything that was taken so far becomes durable; complete files are closed.
Result<> Writing::commit() {
  std::ranges::sort(touched_);
  const auto repeated = std::ranges::unique(touched_);
  touched_.erase(repeated.begin(), repeated.end());
  EBB_TRY(outputs_.sync(touched_));
  for (const std::uint32_t file : complete_) EBB_TRY(outputs_.close(file));
  touched_.clear();
  complete_.clear();
  if (options_.durable && !written_.empty()) EBB_TRY(options_.durable(written_));
  written_.clear();
  committed_ = std::chrono::steady_clock::now();
  return {};
}

void Writing::join() {
  for (Worker& worker : workers_)
    if (worker.thread.joinable()) worker.thread.join();
}

}  // namespace

Error stopped_on_request() {
  return {Code::cancelled, "stopped on request before anything was published",
          "the same command starts again"};
}

Result<> write_pieces(IoQueue& io, PieceMaker& maker, std::span<const OutputFile> files,
                      const fs::path& directory, const PieceWork& work) {
  if (files.empty()) return {};
  return Writing(io, maker, files, directory, work).run();
}

}  // namespace ebb::libswap
