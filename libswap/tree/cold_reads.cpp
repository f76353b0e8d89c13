#include "ebb/libswap/tree/cold_reads.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "ebb/formats/core/units.h"
#include "ebb/libswap/sys/posix_backend.h"

namespace ebb::libswap {

namespace {

constexpr std::uint64_t kBlock = 4096;
constexpr std::size_t kWindow = std::size_t{4} << 20;  // of a file that is looked at at once

// How many bytes at `offset` are in the page cache before the first that is not. To try a read that
// does not wait is no way to ask: the kernel begins to read ahead then, megabytes on some disks.
std::size_t resident_bytes(int descriptor, std::uint64_t offset, std::size_t size) {
  const std::uint64_t first = offset / kBlock * kBlock;
  const std::size_t length = static_cast<std::size_t>(offset - first) + size;
  void* const mapped =
      ::mmap(nullptr, length, PROT_READ, MAP_SHARED, descriptor, static_cast<off_t>(first));
  if (mapped == MAP_FAILED) return 0;
  std::array<unsigned char, kWindow / kBlock + 1> pages{};
  const bool known = ::mincore(mapped, length, pages.data()) == 0;
  ::munmap(mapped, length);
  if (!known) return 0;
  const auto count = static_cast<std::ptrdiff_t>(formats::div_ceil(length, kBlock));
  const auto gap = std::find_if(pages.begin(), pages.begin() + count,
                                [](unsigned char page) { return (page & 1) == 0; });
  const std::uint64_t end = first + static_cast<std::uint64_t>(gap - pages.begin()) * kBlock;
  return end <= offset ? 0 : static_cast<std::size_t>(std::min<std::uint64_t>(end - offset, size));
}

}  // namespace

Result<std::shared_ptr<AlignedBuffer>> BounceBuffers::take() {
  std::unique_ptr<AlignedBuffer> memory;
  {
    const MutexLock lock(mutex_);
    if (!free_.empty()) {
      memory = std::move(free_.back());
      free_.pop_back();
    }
  }
  if (memory == nullptr) {
    EBB_TRY_ASSIGN(AlignedBuffer made, AlignedBuffer::allocate(kBytes));
    memory = std::make_unique<AlignedBuffer>(std::move(made));
  }
  return std::shared_ptr<AlignedBuffer>(memory.release(), [this](AlignedBuffer* back) {
    const MutexLock lock(mutex_);
    free_.emplace_back(back);
  });
}

std::size_t read_cached(int descriptor, std::uint64_t offset, std::span<std::byte> into) {
  std::size_t found = 0;
  while (found < into.size()) {
    const std::size_t there =
        resident_bytes(descriptor, offset + found, std::min(kWindow, into.size() - found));
    if (there == 0) break;
    const iovec part{into.data() + found, there};
    const ssize_t count =
        ::preadv2(descriptor, &part, 1, static_cast<off_t>(offset + found), RWF_NOWAIT);
    if (count <= 0) break;
    found += static_cast<std::size_t>(count);
  }
  return found;
}

Descriptor open_uncached(int descriptor) {
  if (in_memory(descriptor)) return {};
  const std::string path = compose("/proc/self/fd/{}", descriptor);
  return Descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_DIRECT));
}

std::optional<std::size_t> before_blocks(std::uint64_t offset, const std::byte* into) {
  const std::uint64_t in_block = offset % kBlock;
  if (reinterpret_cast<std::uintptr_t>(into) % kBlock != in_block) return std::nullopt;
  return static_cast<std::size_t>((kBlock - in_block) % kBlock);
}

std::size_t read_blocks(int descriptor, std::uint64_t offset, std::span<std::byte> into) {
  const std::size_t wanted = into.size() / kBlock * kBlock;
  std::size_t done = 0;
  while (done < wanted) {
    const std::size_t size = std::min<std::size_t>(wanted - done, kWindow);
    const ssize_t count =
        ::pread(descriptor, into.data() + done, size, static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    done += static_cast<std::size_t>(count) / kBlock * kBlock;
    if (static_cast<std::size_t>(count) < size) break;
  }
  return done;
}

Result<std::size_t> read_uncached(int descriptor, BounceBuffers& buffers, std::uint64_t offset,
                                  std::span<std::byte> into) {
  EBB_TRY_ASSIGN(const std::shared_ptr<AlignedBuffer> bounce, buffers.take());
  std::size_t done = 0;
  while (done < into.size()) {
    const std::uint64_t at = offset + done;
    const std::uint64_t first = at / kBlock * kBlock;
    // In equal pieces: a run of 4 MiB that begins within a block leaves no piece of one block.
    const std::uint64_t left = formats::align_up(offset + into.size(), kBlock) - first;
    const std::uint64_t pieces = formats::div_ceil(left, BounceBuffers::kBytes);
    const std::uint64_t wanted = formats::align_up(formats::div_ceil(left, pieces), kBlock);
    const ssize_t count =
        ::pread(descriptor, bounce->bytes().data(), wanted, static_cast<off_t>(first));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 || static_cast<std::uint64_t>(count) <= at - first) break;
    const std::size_t got = std::min<std::size_t>(
        static_cast<std::size_t>(count) - static_cast<std::size_t>(at - first), into.size() - done);
    std::copy_n(bounce->bytes().begin() + static_cast<std::ptrdiff_t>(at - first), got,
                into.begin() + static_cast<std::ptrdiff_t>(done));
    done += got;
    if (static_cast<std::uint64_t>(count) < wanted) break;  // the end, or a disk that refuses more
  }
  return done;
}

}  // namespace ebb::libswap
