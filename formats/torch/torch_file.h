// A torch.save file as a whole, the zip archive of torch 1.6 and newer or the stream before it: its
// object graph, and where the storages lie.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>

#include "ebb/formats/torch/archive.h"
#include "ebb/formats/torch/elements.h"
#include "ebb/formats/torch/legacy.h"

namespace ebb::formats {

// Where a storage's bytes lie in the file.
struct StoredRecord {
  std::uint64_t at = 0;  // absolute; of the stored bytes
  ZipEntry entry;        // in a stream: its sizes alone, and no CRC32
};

// A record of ours, which torch passes over: tensors do not lie in the order of their model.
inline constexpr std::string_view kOtherOrderRecord = ".other_order";

class TorchFile {
 public:
  // Reads the pickle and the directory. TorchScript archives and the tar files of torch 0.1 are
  // Code::unsupported.
  static Result<TorchFile> open(std::shared_ptr<const ByteSource> source);

  const PickleGraph& graph() const;
  const TorchArchive* archive() const { return std::get_if<TorchArchive>(&content_); }
  ByteOrder order() const;
  std::size_t records() const;   // how many there are; of an archive, with the few of its own
  std::string producer() const;  // "torch 2.7 or newer", as far as the records tell
  // Whether tensors lie in the order of the dicts that were saved, as far as the records tell.
  bool is_in_order() const;
  // Refused when there is none, or a shorter one than the pickle declares. Not for two threads at
  // once.
  Result<StoredRecord> record_of(const TorchTensor& tensor) const;

 private:
  explicit TorchFile(std::shared_ptr<const ByteSource> source,
                     std::variant<TorchArchive, LegacyStream> content)
      : source_(std::move(source)), content_(std::move(content)) {}

  std::shared_ptr<const ByteSource> source_;
  std::variant<TorchArchive, LegacyStream> content_;
  mutable ZipReader::Window headers_;  // of neighbouring records
};

}  // namespace ebb::formats
