// Where the records of a torch.save archive lie: stored, data 64-byte aligned, real CRC32s in data
// descriptors and in the directory, zip64 where sizes need it. What a record holds may be unknown
// while it is laid out: bytes that depend on CRC32s are made when those are known and have the
// same size whatever they are. Internal to formats/torch.
// Source: APPNOTE.TXT 6.3.9, caffe2/serialize/inline_container.cc; docs/formats/torch.md.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/formats/core/bytes.h"

namespace ebb::formats {

class ZipLayout {
 public:
  explicit ZipLayout(std::string folder = "archive") : folder_(std::move(folder)) {}

  // The header of the next record, up to where its data begins.
  ByteVector begin(std::string_view name, std::uint64_t size);
  // What follows the data of the record begun last; empty for a record of nothing.
  ByteVector end(std::uint32_t crc);
  // A whole record of known bytes.
  ByteVector record(std::string_view name, ByteView bytes);
  // The end of the archive. `crcs`: of all records in order.
  ByteVector directory(std::span<const std::uint32_t> crcs) const;

  std::size_t records() const { return entries_.size(); }
  std::uint64_t position() const { return cursor_; }  // where the next header goes

 private:
  struct Entry {
    std::string name;
    std::uint64_t size = 0;
    std::uint64_t header_at = 0;
  };
  static std::uint16_t flags(const Entry& entry);
  static void append_central(ByteVector& out, const Entry& entry, std::uint32_t crc);

  std::string folder_;
  std::vector<Entry> entries_;
  std::uint64_t cursor_ = 0;
};

}  // namespace ebb::formats
