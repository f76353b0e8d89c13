// FileStream: writes files from front to back through the I/O queue, several buffers in flight,
// past the page cache where the file system allows. One file at a time; memory is fixed at
// create().
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "formats/core/bytes.h"
#include "libswap/sys/aligned_buffer.h"
#include "libswap/sys/io_queue.h"

namespace libswap {

// Not thread-safe: one caller.
class FileStream {
 public:
  static constexpr std::uint64_t kBufferBytes = std::uint64_t{4} << 20;
  static constexpr std::size_t kBuffers = 3;

  static Result<std::unique_ptr<FileStream>> create(IoQueue& io, Priority priority);
  ~FileStream();  // waits for writes in flight and closes; what was not finished stays unfinished

  // Makes the file (it must not exist) and reserves `size` bytes for it.
  Result<> open(const fs::path& path, std::uint64_t size);
  // Where the next bytes go: 1 to kBufferBytes of them. Waits for a free buffer. advance() says
  // how many were put there.
  Result<std::span<std::byte>> space();
  Result<> advance(std::size_t bytes);
  Result<> append(formats::ByteView bytes);
  Result<> append_zeros(std::uint64_t count);
  std::uint64_t position() const { return position_; }
  // Everything written, the length exact, durable, closed. REQUIRES: position() == size.
  Result<> finish();

 private:
  FileStream(IoQueue& io, Priority priority, AlignedBuffer memory)
      : io_(io), priority_(priority), memory_(std::move(memory)) {}
  std::span<std::byte> buffer(std::size_t index) {
    return memory_.bytes().subspan(index * kBufferBytes, kBufferBytes);
  }
  Result<> write_out();  // hands the current buffer to the queue
  Result<> drain();

  IoQueue& io_;
  Priority priority_;
  AlignedBuffer memory_;
  std::optional<FileId> file_;
  std::uint64_t size_ = 0;
  std::uint64_t granule_ = 1;  // sizes of writes are multiples of this
  std::uint64_t position_ = 0;
  std::size_t current_ = 0;  // buffer being filled, with the bytes from position_ - filled_ on
  std::size_t filled_ = 0;

  std::mutex mutex_;
  std::condition_variable written_;
  std::array<bool, kBuffers> in_flight_{};  // guarded by mutex_
  std::optional<formats::Error> failure_;   // the first one; guarded by mutex_
};

}  // namespace libswap
