#include "ebb/libswap/queue/disk_probe.h"

#include <chrono>
#include <cstring>
#include <list>
#include <vector>

#include "ebb/libswap/sys/aligned_buffer.h"
#include "ebb/libswap/sys/block_file.h"
#include "ebb/libswap/sys/mutex.h"
#include "ebb/libswap/sys/process.h"

namespace ebb::libswap {
namespace {

// Moves a range in operations of one size, `depth` of them in flight; each has its own buffer.
class Stream {
 public:
  struct Range {
    FileId file{};
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };
  Stream(IoQueue& queue, RawOp::Kind kind, const Range& range, const DiskProbe& probe,
         std::span<std::byte> buffers)
      : queue_(queue), kind_(kind), probe_(probe), buffers_(buffers), range_(range) {}

  void start() {
    const MutexLock lock(mutex_);
    for (std::uint32_t slot = 0; slot < probe_.depth; ++slot) send(slot);
  }
  Result<> wait() {
    const MutexLock lock(mutex_);
    while (in_flight_ != 0) done_.wait(mutex_);
    return std::move(result_);
  }

 private:
  void send(std::uint32_t slot) EBB_REQUIRES(mutex_) {
    if (range_.begin >= range_.end || !result_) return;
    const std::uint64_t at = range_.begin;
    range_.begin += probe_.operation_bytes;
    ++in_flight_;
    const std::uint64_t place = std::uint64_t{slot} * probe_.operation_bytes;
    queue_.submit({kind_, range_.file, at, buffers_.subspan(place, probe_.operation_bytes),
                   Priority::step,
                   [this, slot](const Result<>& result) { finished(slot, result); }});
  }
  void finished(std::uint32_t slot, const Result<>& result) {
    const MutexLock lock(mutex_);
    if (!result && result_) result_ = result;
    --in_flight_;
    send(slot);
    if (in_flight_ == 0) done_.notify_one();
  }

  IoQueue& queue_;
  RawOp::Kind kind_;
  DiskProbe probe_;
  std::span<std::byte> buffers_;
  Mutex mutex_;
  Condition done_;
  Range range_ EBB_GUARDED_BY(mutex_);  // what is left of it
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

Result<> check_probe(const DiskProbe& probe) {
  const std::uint64_t step = probe.operation_bytes;
  if (step != 0 && step % 4096 == 0 && probe.depth != 0 && probe.depth <= 256 &&
      probe.bytes >= step && probe.bytes < (std::uint64_t{1} << 50))
    return {};
  return Error{Code::usage,
               compose("cannot measure a disk with {} bytes in operations of {}, {} at a time",
                       probe.bytes, step, probe.depth)};
}

class Measurement {
 public:
  Measurement(IoQueue& queue, const DiskProbe& probe, FileId file)
      : queue_(queue), probe_(probe), file_(file) {
    probe_.bytes -= probe_.bytes % probe_.operation_bytes;
  }

  Result<DiskLimit> run() {
    const std::uint64_t window = std::uint64_t{probe_.depth} * probe_.operation_bytes;
    EBB_TRY_ASSIGN(out_, AlignedBuffer::allocate(window));
    EBB_TRY_ASSIGN(in_, AlignedBuffer::allocate(window));
    fill_with_noise(out_.bytes());
    fill_with_noise(in_.bytes());
    EBB_TRY(queue_.backend().allocate(file_, 2 * probe_.bytes));
    // Written once, so that no figure holds the first write of a fresh extent.
    EBB_TRY(timed({{RawOp::Kind::write, 0}, {RawOp::Kind::write, 1}}));
    DiskLimit limit;
    EBB_TRY_ASSIGN(limit.read, timed({{RawOp::Kind::read, 0}}));
    EBB_TRY_ASSIGN(limit.write, timed({{RawOp::Kind::write, 1}}));
    EBB_TRY_ASSIGN(limit.mixed, timed({{RawOp::Kind::read, 0}, {RawOp::Kind::write, 1}}));
    EBB_TRY_ASSIGN(const FileInfo info, queue_.backend().info(file_));
    limit.direct = info.direct;
    limit.in_memory = info.in_memory;
    return limit;
  }

 private:
  struct Part {
    RawOp::Kind kind{};
    std::uint64_t half = 0;  // of the file
  };
  // Bytes per second of the parts together.
  Result<double> timed(const std::vector<Part>& parts) {
    std::list<Stream> streams;
    for (const auto& [kind, half] : parts) {
      const Stream::Range range{file_, half * probe_.bytes, (half + 1) * probe_.bytes};
      AlignedBuffer& buffer = kind == RawOp::Kind::read ? in_ : out_;
      streams.emplace_back(queue_, kind, range, probe_, buffer.bytes());
    }
    const auto start = std::chrono::steady_clock::now();
    for (Stream& stream : streams) stream.start();
    Result<> result;
    for (Stream& stream : streams) {
      Result<> one = stream.wait();
      if (!one && result) result = std::move(one);
    }
    EBB_TRY(std::move(result));
    return static_cast<double>(parts.size() * probe_.bytes) / seconds_since(start);
  }

  IoQueue& queue_;
  DiskProbe probe_;
  FileId file_;
  AlignedBuffer out_;
  AlignedBuffer in_;
};

}  // namespace

Result<DiskLimit> measure_disk(IoQueue& queue, const fs::path& directory, const DiskProbe& probe) {
  EBB_TRY(check_probe(probe));
  IoBackend& backend = queue.backend();
  const fs::path path = directory / (compose("ebb-probe-{}", process_id()));
  EBB_TRY_ASSIGN(const FileId file,
                 open_block_file(backend, path,
                                 {.access = Access::read_write, .creation = Creation::create_new}));
  const Result<> unlinked = backend.remove(path);
  Result<DiskLimit> limit =
      unlinked ? Measurement(queue, probe, file).run() : Result<DiskLimit>(unlinked.error());
  EBB_TRY(backend.close(file));
  return limit;
}

Result<std::vector<std::string>> io_notes(IoBackend& backend, const fs::path& directory) {
  const fs::path path = directory / compose("ebb-look-{}", process_id());
  EBB_TRY_ASSIGN(const FileId file, backend.open(path, {.access = Access::read_write,
                                                        .creation = Creation::create_new,
                                                        .direct = Direct::preferred}));
  const auto info = backend.info(file);
  EBB_TRY(backend.remove(path));
  EBB_TRY(backend.close(file));
  if (!info) return info.error();
  std::vector<std::string> notes;
  const std::string where = directory.string();
  if (info->in_memory)
    notes.push_back(where + " is in memory: its state survives a kill, not a power loss");
  else if (!info->direct)
    notes.push_back(where + ": its file system has no O_DIRECT; the page cache is used");
  else if (info->alignment > kFileBlock)
    notes.push_back(compose(
        "{}: direct I/O there needs multiples of {} bytes, tiles lie at multiples of {}; the page "
        "cache is used",
        where, info->alignment, kFileBlock));
  if (const std::string why = no_huge_pages(); !why.empty())
    notes.push_back("no huge pages: " + why + "; buffers are in pages of 4 KiB");
  return notes;
}

}  // namespace ebb::libswap
