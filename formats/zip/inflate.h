// A deflated record as a ByteSource of what it holds. Reading forward costs one pass; reading
// backward starts again at the front. Memory: one inflating window (about 100 KiB) a source,
// whatever the record's size.
#pragma once

#include <memory>
#include <string>

#include "ebb/formats/core/byte_source.h"
#include "ebb/formats/zip/zip_entry.h"

namespace ebb::formats {

// Thread-safe: readers that come at the same time each inflate for themselves.
class InflateSource : public ByteSource {
 public:
  // `at` is where the record's stored bytes begin in `source` (ZipReader::data_offset).
  InflateSource(std::shared_ptr<const ByteSource> source, std::uint64_t at, const ZipEntry& entry);
  ~InflateSource() override;

  std::uint64_t size() const override { return entry_.size; }
  // The read that reaches the record's end also verifies its CRC32.
  Result<> read(std::uint64_t offset, std::span<std::byte> into) const override;
  std::string_view name() const override { return name_; }
  // Verifies the CRC32 now: reads on to the record's end, if the last read did not come that far.
  Result<> finish() const;

 private:
  class Cursor;

  std::shared_ptr<const ByteSource> source_;
  std::uint64_t at_ = 0;
  ZipEntry entry_;
  std::string name_;
  mutable std::atomic<std::shared_ptr<Cursor>> resting_;  // taken out while it is used
};

}  // namespace ebb::formats
