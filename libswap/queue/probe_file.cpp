#include "ebb/libswap/queue/probe_file.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <span>
#include <vector>

#include "ebb/formats/core/check.h"
#include "ebb/libswap/sys/block_file.h"
#include "ebb/libswap/sys/mutex.h"
#include "ebb/libswap/sys/process.h"

namespace ebb::libswap {
namespace {

using Clock = std::chrono::steady_clock;

// Moves ranges at the same time in operations of one size, `depth` of each range in flight; each
// has its own buffer. No range gets further ahead of another than what is in flight: a step writes
// as much as it reads.
class Flow {
 public:
  struct Range {
    RawOp::Kind kind{};
    FileId file{};
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::span<std::byte> memory;  // operations go round in it
  };
  struct Limits {
    std::uint32_t operation_bytes = 0;
    std::uint32_t depth = 0;
    bool repeats = false;  // ranges begin anew at their ends; only time stops them
    Clock::time_point end = Clock::time_point::max();  // nothing starts after it
    const std::atomic<bool>* cancel = nullptr;
  };
  Flow(IoQueue& queue, const Limits& limits, const std::vector<Range>& ranges)
      : queue_(queue), limits_(limits) {
    for (const Range& range : ranges) lanes_.push_back({.range = range, .at = range.begin});
  }

  // The bytes moved of each range, in operations that are whole.
  Result<std::vector<std::uint64_t>> run() {
    const MutexLock lock(mutex_);
    send_all();
    while (in_flight_ != 0) done_.wait(mutex_);
    EBB_TRY(std::move(result_));
    std::vector<std::uint64_t> moved;
    for (const Lane& lane : lanes_) moved.push_back(lane.moved);
    return moved;
  }

 private:
  struct Lane {
    Range range;
    std::uint64_t at = 0;
    std::uint64_t sent = 0;
    std::uint64_t moved = 0;
    std::uint64_t place = 0;  // in its memory
    std::uint32_t in_flight = 0;
  };
  bool ended() const EBB_REQUIRES(mutex_) {
    if (!result_) return true;
    if (limits_.cancel != nullptr && limits_.cancel->load(std::memory_order_relaxed)) return true;
    return limits_.end != Clock::time_point::max() && Clock::now() >= limits_.end &&
           lanes_.front().moved > 0;
  }
  bool may_send(const Lane& lane) const EBB_REQUIRES(mutex_) {
    if (lane.in_flight == limits_.depth || (lane.at == lane.range.end && !limits_.repeats))
      return false;
    const std::uint64_t ahead = std::uint64_t{limits_.operation_bytes} * limits_.depth;
    return std::ranges::all_of(lanes_,
                               [&](const Lane& other) { return lane.sent < other.sent + ahead; });
  }
  void send_all() EBB_REQUIRES(mutex_) {
    if (ended()) return;
    for (bool sent = true; sent;) {
      sent = false;
      for (std::uint32_t i = 0; i < lanes_.size(); ++i) {
        if (!may_send(lanes_[i])) continue;
        send(i);
        sent = true;
      }
    }
  }
  void send(std::uint32_t number) EBB_REQUIRES(mutex_) {
    Lane& lane = lanes_[number];
    const std::uint32_t size = limits_.operation_bytes;
    if (lane.at == lane.range.end) lane.at = lane.range.begin;
    if (lane.place + size > lane.range.memory.size()) lane.place = 0;
    queue_.submit({lane.range.kind, lane.range.file, lane.at,
                   lane.range.memory.subspan(lane.place, size), Priority::step,
                   [this, number](const Result<>& result) { finished(number, result); }});
    lane.at += size;
    lane.sent += size;
    lane.place += size;
    ++lane.in_flight;
    ++in_flight_;
  }
  void finished(std::uint32_t number, const Result<>& result) {
    const MutexLock lock(mutex_);
    if (!result && result_) result_ = result;
    lanes_[number].moved += limits_.operation_bytes;
    --lanes_[number].in_flight;
    --in_flight_;
    send_all();
    if (in_flight_ == 0) done_.notify_one();
  }

  IoQueue& queue_;
  const Limits limits_;
  Mutex mutex_;
  Condition done_;
  std::vector<Lane> lanes_ EBB_GUARDED_BY(mutex_);
  std::uint32_t in_flight_ EBB_GUARDED_BY(mutex_) = 0;
  Result<> result_ EBB_GUARDED_BY(mutex_);
};

// Bytes a disk cannot compress away or recognise. REQUIRES: a multiple of 8 bytes.
void fill_with_noise(std::span<std::byte> bytes) {
  std::uint64_t state = 0x9e3779b97f4a7c15;
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(state)) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    std::memcpy(&bytes[at], &state, sizeof(state));
  }
}

// Where operations have their bytes, each way.
struct Buffers {
  AlignedBuffer in;
  AlignedBuffer out;

  Result<> allocate(std::uint64_t bytes, Pages pages) {
    if (in.size() == bytes) return {};
    EBB_TRY_ASSIGN(in, AlignedBuffer::allocate(bytes, pages));
    EBB_TRY_ASSIGN(out, AlignedBuffer::allocate(bytes, pages));
    fill_with_noise(in.bytes());
    fill_with_noise(out.bytes());
    return {};
  }
};

}  // namespace

struct ProbeFile::Impl {
  Impl(IoQueue& used, const Options& given) : queue(used), options(given) {}

  // A half of the file in one direction.
  struct Part {
    RawOp::Kind kind{};
    std::uint64_t half = 0;
    std::uint64_t bytes = 0;  // from its beginning
  };
  struct Moved {
    std::vector<std::uint64_t> bytes;  // of each part
    double seconds = 0;
  };
  enum class Ends : std::uint8_t { with_the_bytes, with_the_time };
  Result<> open(const fs::path& directory);
  Result<> fill();
  Result<Moved> move(const std::vector<Part>& parts, const Setting& setting, double most_seconds,
                     Ends ends);

  IoQueue& queue;
  Options options;
  FileId direct{}, cached{};  // the same file, with O_DIRECT where there is that, and without
  FileInfo info;
  std::uint64_t half = 0;         // where the second one begins
  std::uint64_t half_bytes = 0;   // of each that were written
  std::array<Buffers, 2> memory;  // by Pages
};

Result<> ProbeFile::Impl::open(const fs::path& directory) {
  IoBackend& backend = queue.backend();
  const fs::path path = directory / (compose("ebb-probe-{}", process_id()));
  EBB_TRY_ASSIGN(direct,
                 open_block_file(backend, path,
                                 {.access = Access::read_write, .creation = Creation::create_new}));
  Result<FileId> other = backend.open(path, {.access = Access::read_write});
  const Result<> unlinked = backend.remove(path);
  if (other && unlinked) {
    cached = *other;
    return {};
  }
  EBB_TRY(backend.close(direct));
  if (other) EBB_TRY(backend.close(*other));
  return other ? unlinked : Result<>(other.error());
}

Result<> ProbeFile::Impl::fill() {
  constexpr std::uint32_t kMostOperation = 4u << 20;
  half = options.half_bytes;
  half_bytes = half;
  Setting setting;
  setting.operation_bytes = static_cast<std::uint32_t>(
      std::min<std::uint64_t>({kMostOperation, half, options.memory_bytes}));
  while (half % setting.operation_bytes != 0) setting.operation_bytes -= 4096;
  setting.depth = static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(options.memory_bytes / setting.operation_bytes, 1, 8));
  EBB_TRY(queue.backend().allocate(direct, 2 * half));
  EBB_TRY_ASSIGN(info, queue.backend().info(direct));
  EBB_TRY_ASSIGN(const Moved moved,
                 move({{RawOp::Kind::write, 0, half}, {RawOp::Kind::write, 1, half}}, setting,
                      options.most_seconds, Ends::with_the_bytes));
  half_bytes = std::min(moved.bytes[0], moved.bytes[1]);
  return {};
}

Result<ProbeFile::Impl::Moved> ProbeFile::Impl::move(const std::vector<Part>& parts,
                                                     const Setting& setting, double most_seconds,
                                                     Ends ends) {
  Buffers& buffers = memory[setting.pages == Pages::huge ? 0 : 1];
  EBB_TRY(buffers.allocate(options.memory_bytes, setting.pages));
  const bool past = setting.caching == Caching::direct;
  std::vector<Flow::Range> ranges;
  for (const Part& part : parts) {
    const std::uint64_t bytes = part.bytes - part.bytes % setting.operation_bytes;
    AlignedBuffer& memory_of = part.kind == RawOp::Kind::read ? buffers.in : buffers.out;
    ranges.push_back({part.kind, past ? direct : cached, part.half * half, part.half * half + bytes,
                      memory_of.bytes()});  // two writes may send the same bytes
  }
  const auto begin = Clock::now();
  Flow::Limits limits{.operation_bytes = setting.operation_bytes,
                      .depth = setting.depth,
                      .repeats = ends == Ends::with_the_time,
                      .cancel = options.cancel};
  if (most_seconds > 0)
    limits.end = begin + std::chrono::duration_cast<Clock::duration>(
                             std::chrono::duration<double>(most_seconds));
  Moved moved;
  EBB_TRY_ASSIGN(moved.bytes, Flow(queue, limits, ranges).run());
  if (options.cancel != nullptr && options.cancel->load(std::memory_order_relaxed))
    return Error{Code::cancelled, "stopped on request"};
  if (!past && parts.back().kind == RawOp::Kind::write) EBB_TRY(queue.sync_data(cached));
  moved.seconds = seconds_since(begin);
  return moved;
}

Result<std::unique_ptr<ProbeFile>> ProbeFile::make(IoQueue& queue, const fs::path& directory,
                                                   const Options& options) {
  auto impl = std::make_unique<Impl>(queue, options);
  EBB_TRY(impl->open(directory));
  std::unique_ptr<ProbeFile> file(new ProbeFile(std::move(impl)));
  EBB_TRY(file->impl_->fill());
  return file;
}

ProbeFile::ProbeFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

ProbeFile::~ProbeFile() {
  IoBackend& backend = impl_->queue.backend();
  static_cast<void>(backend.close(impl_->cached));  // its bytes are nobody's
  static_cast<void>(backend.close(impl_->direct));
}

std::uint64_t ProbeFile::half_bytes() const { return impl_->half_bytes; }

const FileInfo& ProbeFile::info() const { return impl_->info; }

Result<double> ProbeFile::measure(Traffic traffic, const Setting& setting, double most_seconds) {
  Impl& impl = *impl_;
  const std::uint64_t window = std::uint64_t{setting.operation_bytes} * setting.depth;
  EBB_CHECK(setting.operation_bytes <= impl.half_bytes && window <= impl.options.memory_bytes);
  std::uint64_t readable = impl.half_bytes;
  const bool cached = setting.caching == Caching::page_cache;
  using Ends = Impl::Ends;
  if (cached && impl.info.direct && traffic != Traffic::write) {
    // Writing past the page cache empties it of the same bytes.
    Setting past = setting;
    past.caching = Caching::direct;
    EBB_TRY_ASSIGN(const Impl::Moved moved, impl.move({{RawOp::Kind::write, 0, readable}}, past,
                                                      most_seconds, Ends::with_the_bytes));
    readable = moved.bytes.front();
  }
  std::vector<Impl::Part> parts;
  if (traffic != Traffic::write) parts.push_back({RawOp::Kind::read, 0, readable});
  if (traffic != Traffic::read) parts.push_back({RawOp::Kind::write, 1, impl.half_bytes});
  const Ends ends = most_seconds > 0 && !cached ? Ends::with_the_time : Ends::with_the_bytes;
  EBB_TRY_ASSIGN(const Impl::Moved moved, impl.move(parts, setting, most_seconds, ends));
  std::uint64_t all = 0;
  for (const std::uint64_t bytes : moved.bytes) all += bytes;
  return static_cast<double>(all) / moved.seconds;
}

}  // namespace ebb::libswap
