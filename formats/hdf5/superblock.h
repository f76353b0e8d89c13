// The first bytes of an HDF5 file, as far as they say whether the file is whole. Source: HDF5 File
// Format Specification 3.0, "Disk Format: Level 0A".
#pragma once

#include <cstdint>

#include "ebb/formats/core/byte_source.h"

namespace ebb::formats::hdf5 {

struct Superblock {
  std::uint64_t at = 0;   // where the file of HDF5 begins: behind the user block, if there is one
  std::uint64_t end = 0;  // where it ends, by its own word, from the file's first byte
  std::uint8_t version = 0;
};

// At 0, or behind a user block of 512, 1024, 2048, ... bytes.
bool has_signature(const ByteSource& file);

// Code::incomplete when the file ends before its own end or was never closed by its writer;
// Code::unsupported for a version, or sizes of addresses, that nobody writes.
Result<Superblock> read_superblock(const ByteSource& file);

// The file from `at` on: what the reader program is shown, so that every offset means one thing.
class FromByte : public ByteSource {
 public:
  FromByte(std::shared_ptr<const ByteSource> file, std::uint64_t at)
      : file_(std::move(file)), at_(at) {}
  std::uint64_t size() const override { return file_->size() - at_; }
  Result<> read(std::uint64_t offset, std::span<std::byte> into) const override;
  std::string_view name() const override { return file_->name(); }

 private:
  std::shared_ptr<const ByteSource> file_;
  std::uint64_t at_ = 0;  // at most the file's size
};

}  // namespace ebb::formats::hdf5
