#include "ebb/libswap/sys/ring_pipe.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "ebb/formats/core/units.h"
#include "ebb/libswap/sys/errno_error.h"

namespace ebb::libswap {

// How many bytes ever went in, and came out. Each is written by one process.
struct RingPipe::Counts {
  alignas(64) std::atomic<std::uint64_t> in;
  alignas(64) std::atomic<std::uint64_t> out;
};

namespace {

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);  // else not between processes

constexpr std::uint64_t kCountsBytes = 4096;  // of both rings
// Told to the other end so often, so that it copies while this one does.
constexpr std::uint64_t kPublished = 128 * formats::KiB;

}  // namespace

Result<Descriptor> RingPipe::make_memory(std::uint64_t ring_bytes) {
  EBB_CHECK(std::has_single_bit(ring_bytes));
  Descriptor memory(::memfd_create("ebb-ranks", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory) return errno_error(errno, "memfd_create");
  // All of it now: a page that cannot be had later would be a SIGBUS.
  const auto size = static_cast<off_t>(kCountsBytes + 2 * ring_bytes);
  if (const int failure = ::posix_fallocate(memory.get(), 0, size); failure != 0)
    return errno_error(failure, compose("{} bytes shared by two ranks", size));
  if (::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return errno_error(errno, "F_ADD_SEALS");
  return memory;
}

Result<std::unique_ptr<RingPipe>> RingPipe::open(const Descriptor& memory, End end) {
  struct stat about{};
  if (::fstat(memory.get(), &about) != 0) return errno_error(errno, "fstat");
  const int seals = ::fcntl(memory.get(), F_GET_SEALS);
  const auto size = static_cast<std::uint64_t>(about.st_size);
  const std::uint64_t ring_bytes = size < kCountsBytes ? 0 : (size - kCountsBytes) / 2;
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || !std::has_single_bit(ring_bytes) ||
      size != kCountsBytes + 2 * ring_bytes)
    return Error{Code::corrupt, compose("memory of {} bytes that a rank shares is no ring", size)};
  void* const place = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  if (place == MAP_FAILED) return errno_error(errno, "mmap of shared memory");
  ::madvise(place, size, MADV_DONTFORK);
  return std::unique_ptr<RingPipe>(new RingPipe(static_cast<std::byte*>(place), ring_bytes, end));
}

RingPipe::RingPipe(std::byte* memory, std::uint64_t ring_bytes, End end)
    : memory_(memory), size_(ring_bytes) {
  // New memory is zeros, which is what empty counts are.
  auto* const counts = reinterpret_cast<Counts*>(memory_);
  Ring first{counts, memory_ + kCountsBytes};
  Ring second{counts + 1, memory_ + kCountsBytes + size_};
  if (end == End::guest) std::swap(first, second);
  out_ = first;
  in_ = second;
}

RingPipe::~RingPipe() { ::munmap(memory_, kCountsBytes + 2 * size_); }

// The other process may write what it likes; it cannot make this one leave the memory.
Result<std::uint64_t> RingPipe::held(const Ring& ring) const {
  const std::uint64_t out = ring.counts->out.load(std::memory_order_acquire);
  const std::uint64_t held = ring.counts->in.load(std::memory_order_acquire) - out;
  if (held > size_)
    return Error{Code::corrupt, compose("a ring of {} bytes between ranks holds {}", size_, held)};
  return held;
}

Result<std::size_t> RingPipe::write(ByteView bytes) {
  EBB_TRY_ASSIGN(const std::uint64_t held, this->held(out_));
  const std::uint64_t count = std::min<std::uint64_t>(bytes.size(), size_ - held);
  std::uint64_t at = out_.counts->in.load(std::memory_order_relaxed);
  for (ByteView rest = bytes.first(count); !rest.empty();) {
    const std::uint64_t place = at & (size_ - 1);
    const auto next = rest.first(std::min({rest.size(), kPublished, size_ - place}));
    std::memcpy(out_.bytes + place, next.data(), next.size());
    at += next.size();
    out_.counts->in.store(at, std::memory_order_release);
    rest = rest.subspan(next.size());
  }
  return count;
}

Result<std::size_t> RingPipe::read(std::span<std::byte> into) {
  EBB_TRY_ASSIGN(const std::uint64_t held, this->held(in_));
  const std::uint64_t count = std::min<std::uint64_t>(into.size(), held);
  std::uint64_t at = in_.counts->out.load(std::memory_order_relaxed);
  for (auto rest = into.first(count); !rest.empty();) {
    const std::uint64_t place = at & (size_ - 1);
    const auto next = rest.first(std::min({rest.size(), kPublished, size_ - place}));
    std::memcpy(next.data(), in_.bytes + place, next.size());
    at += next.size();
    in_.counts->out.store(at, std::memory_order_release);
    rest = rest.subspan(next.size());
  }
  return count;
}

}  // namespace ebb::libswap
