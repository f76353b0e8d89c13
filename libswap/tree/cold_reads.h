// ColdReads: large reads of files that are mostly not in memory, as fast as the disk gives them and
// without filling the page cache with what nobody reads twice.
//
// Why not plain reads: the kernel reads ahead in small steps, one after another. Measured on this
// project's NVMe disk, cold: 136 to 330 MB/s against 1,200 to 1,600 MB/s with O_DIRECT. Why not
// O_DIRECT alone: what is in memory already comes from there several times faster.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ebb/libswap/sys/aligned_buffer.h"
#include "ebb/libswap/sys/mutex.h"
#include "ebb/libswap/tree/caches.h"

namespace ebb::libswap {

// Aligned memory for readers, as much as readers are at work at a time. Thread-safe.
class BounceBuffers {
 public:
  // A huge page, whole: what is a little larger takes one more.
  static constexpr std::uint64_t kBytes = std::uint64_t{2} << 20;

  // Comes back when the last one lets go of it.
  Result<std::shared_ptr<AlignedBuffer>> take();

 private:
  Mutex mutex_;
  std::vector<std::unique_ptr<AlignedBuffer>> free_ EBB_GUARDED_BY(mutex_);
};

// From here on a read is worth a look at what is in memory.
constexpr std::size_t kColdRead = std::size_t{128} << 10;

// The bytes at `offset` that are in the page cache, up to the first that is not; how many.
std::size_t read_cached(int descriptor, std::uint64_t offset, std::span<std::byte> into);

// The same file again, for reads past the page cache; none where the file system has no such reads.
Descriptor open_uncached(int descriptor);

// How many bytes before the first block of the file that memory at `into` can take as it lies; none
// where addresses and places in the file do not fall on such borders together.
std::optional<std::size_t> before_blocks(std::uint64_t offset, const std::byte* into);

// Reads whole blocks past the page cache, straight to where they are wanted; how many bytes, fewer
// at the file's end or where such reads do not work. REQUIRES: before_blocks(offset, into) is 0.
std::size_t read_blocks(int descriptor, std::uint64_t offset, std::span<std::byte> into);

// Reads past the page cache, by way of a bounce buffer; how many bytes, fewer at the file's end or
// where such reads do not work: the rest is read another way.
Result<std::size_t> read_uncached(int descriptor, BounceBuffers& buffers, std::uint64_t offset,
                                  std::span<std::byte> into);

}  // namespace ebb::libswap
