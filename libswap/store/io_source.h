// Files behind an IoQueue as the sources that decoders read.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "ebb/formats/core/byte_source.h"
#include "ebb/libswap/queue/io_queue.h"

namespace ebb::libswap {

// Borrows the queue and the file, which was opened without O_DIRECT: any offset and size.
class IoSource : public formats::ByteSource {
 public:
  IoSource(IoQueue& io, FileId file, std::string name, std::uint64_t size)
      : io_(io), file_(file), name_(std::move(name)), size_(size) {}
  std::uint64_t size() const override { return size_; }
  std::string_view name() const override { return name_; }
  Result<> read(std::uint64_t offset, std::span<std::byte> into) const override {
    return io_.read(file_, offset, into);
  }

 protected:
  IoQueue& io_;
  FileId file_;

 private:
  std::string name_;
  std::uint64_t size_ = 0;
};

}  // namespace ebb::libswap
