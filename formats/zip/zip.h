// The zip container of torch.save, read through its central directory only. Strict where zip
// readers disagree with each other: no prefix bytes, no comment games, no duplicate or escaping
// names, no overlapping entries, no encryption, one top folder. Methods: stored and deflate. Source
// of the layout: APPNOTE.TXT 6.3.9, caffe2/serialize/inline_container.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/formats/core/byte_source.h"
#include "ebb/formats/core/name_table.h"
#include "ebb/formats/core/result.h"
#include "ebb/formats/zip/zip_entry.h"

namespace ebb::formats {

class ZipReader {
 public:
  // The archive is bytes [offset, offset + length) of `source`. Reads the directory, no entry.
  static Result<ZipReader> open(std::shared_ptr<const ByteSource> source, std::uint64_t offset,
                                std::uint64_t length);
  ZipReader(ZipReader&&) = default;  // no copies: by_name_ looks into entries_
  ZipReader& operator=(ZipReader&&) = default;

  const std::vector<ZipEntry>& entries() const { return entries_; }
  const std::string& folder() const { return folder_; }  // "archive", without the '/'
  // By the name below the top folder; nullptr when absent.
  const ZipEntry* find(std::string_view name) const;

  // Where the entry's stored bytes begin in the source (absolute); checks the local header.
  Result<std::uint64_t> data_offset(const ZipEntry& entry) const;
  // The same for many small entries, in their order: what was read around the last one is kept.
  struct Window {
    std::uint64_t at = 0;  // from the start of the archive
    ByteVector bytes;
  };
  Result<std::uint64_t> data_offset(const ZipEntry& entry, Window& window) const;
  // The whole entry, inflated and CRC-checked; refused above `limit` bytes.
  Result<ByteVector> read(const ZipEntry& entry, std::uint64_t limit) const;

  const ByteSource& source() const { return *source_; }
  std::uint64_t offset() const { return offset_; }
  Error crc_failure(const ZipEntry& entry) const;

 private:
  ZipReader() = default;
  struct Directory {
    std::uint64_t at = 0, size = 0, count = 0, end = 0;
  };
  Error bad(std::uint64_t at, std::string_view why) const;
  Result<Directory> find_directory() const;
  Result<std::uint64_t> find_end(ByteVector& tail) const;
  Result<Directory> zip64_directory(std::uint64_t end_at) const;
  Result<> read_directory(const Directory& where);
  Result<ZipEntry> read_entry(ByteReader& reader, std::uint64_t at) const;
  Result<> check_name(const ZipEntry& entry) const;
  Result<> name_entries(const std::vector<std::uint64_t>& places);
  Result<> check_places(const Directory& where);
  Result<ByteView> header_of(const ZipEntry& entry, Window& window) const;

  std::shared_ptr<const ByteSource> source_;
  std::uint64_t offset_ = 0;
  std::uint64_t length_ = 0;
  std::vector<ZipEntry> entries_;
  NameTable by_name_;  // below the folder, as numbered in entries_
  std::string folder_;
};

}  // namespace ebb::formats
