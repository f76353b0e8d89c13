#include "libswap/transfer/file_stream.h"

#include <algorithm>

#include "formats/core/check.h"
#include "formats/core/units.h"

namespace libswap {

Result<std::unique_ptr<FileStream>> FileStream::create(IoQueue& io, Priority priority) {
  TRY_ASSIGN(AlignedBuffer memory, AlignedBuffer::allocate(kBufferBytes * kBuffers));
  return std::unique_ptr<FileStream>(new FileStream(io, priority, std::move(memory)));
}

FileStream::~FileStream() {
  static_cast<void>(drain());
  if (file_) static_cast<void>(io_.backend().close(*file_));
}

Result<> FileStream::open(const fs::path& path, std::uint64_t size) {
  CHECK(!file_);
  TRY_ASSIGN(file_, io_.backend().open(path, {.access = Access::read_write,
                                              .creation = Creation::create_new,
                                              .direct = Direct::preferred,
                                              .visibility = Visibility::by_umask}));
  TRY_ASSIGN(const FileInfo info, io_.backend().info(*file_));
  granule_ = info.direct ? info.alignment : 1;
  size_ = size;
  position_ = 0;
  filled_ = 0;
  if (size > 0) TRY(io_.backend().allocate(*file_, formats::align_up(size, granule_)));
  return {};
}

Result<std::span<std::byte>> FileStream::space() {
  std::unique_lock lock(mutex_);
  written_.wait(lock, [this] { return !in_flight_[current_]; });
  if (failure_) return *failure_;
  return buffer(current_).subspan(filled_);
}

Result<> FileStream::advance(std::size_t bytes) {
  CHECK(filled_ + bytes <= kBufferBytes && position_ + bytes <= size_);
  filled_ += bytes;
  position_ += bytes;
  return filled_ == kBufferBytes ? write_out() : Result<>();
}

Result<> FileStream::append(formats::ByteView bytes) {
  while (!bytes.empty()) {
    TRY_ASSIGN(const std::span<std::byte> room, space());
    const std::size_t part = std::min(room.size(), bytes.size());
    std::copy_n(bytes.begin(), part, room.begin());
    TRY(advance(part));
    bytes = bytes.subspan(part);
  }
  return {};
}

Result<> FileStream::append_zeros(std::uint64_t count) {
  while (count > 0) {
    TRY_ASSIGN(const std::span<std::byte> room, space());
    const std::size_t part = std::min<std::uint64_t>(room.size(), count);
    std::fill_n(room.begin(), part, std::byte{0});
    TRY(advance(part));
    count -= part;
  }
  return {};
}

Result<> FileStream::write_out() {
  const std::uint64_t offset = position_ - filled_;
  const std::size_t used = formats::align_up(filled_, granule_);
  const std::span<std::byte> data = buffer(current_).first(used);
  std::fill(data.begin() + static_cast<std::ptrdiff_t>(filled_), data.end(), std::byte{0});
  const std::size_t index = current_;
  {
    const std::lock_guard guard(mutex_);
    in_flight_[index] = true;
  }
  current_ = (current_ + 1) % kBuffers;
  filled_ = 0;
  io_.submit({RawOp::Kind::write, *file_, offset, data, priority_, [this, index](Result<> result) {
                const std::lock_guard guard(mutex_);
                in_flight_[index] = false;
                if (!result && !failure_) failure_ = result.error();
                written_.notify_all();  // inside the lock: the waiter may destroy this object
              }});
  return {};
}

Result<> FileStream::drain() {
  std::unique_lock lock(mutex_);
  written_.wait(lock, [this] { return std::ranges::none_of(in_flight_, std::identity{}); });
  if (failure_) return *failure_;
  return {};
}

Result<> FileStream::finish() {
  CHECK(file_ && position_ == size_);
  if (filled_ > 0) TRY(write_out());
  TRY(drain());
  if (size_ % granule_ != 0) TRY(io_.backend().truncate(*file_, size_));
  TRY(io_.backend().sync(*file_));
  const FileId file = *file_;
  file_.reset();
  return io_.backend().close(file);
}

}  // namespace libswap
