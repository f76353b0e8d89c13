#include "ebb/formats/torch/torch_file.h"

#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/refuse.h"

namespace ebb::formats {

Result<TorchFile> TorchFile::open(std::shared_ptr<const ByteSource> source) {
  if (source->size() == 0) return refuse(Code::incomplete, source->name(), 0, "the file is empty");
  if (source->size() >= kLegacyMagicBytes) {
    EBB_TRY_ASSIGN(const ByteVector head,
                   read_bytes(*source, 0, kLegacyMagicBytes, kLegacyMagicBytes));
    if (is_legacy_magic(head)) {
      EBB_TRY_ASSIGN(LegacyStream stream, read_legacy_stream(*source));
      return TorchFile(std::move(source), std::move(stream));
    }
  }
  EBB_TRY_ASSIGN(TorchArchive archive, TorchArchive::open(source, 0, source->size()));
  return TorchFile(std::move(source), std::move(archive));
}

const PickleGraph& TorchFile::graph() const {
  const auto* archive = std::get_if<TorchArchive>(&content_);
  return archive != nullptr ? archive->graph() : std::get<LegacyStream>(content_).graph;
}

ByteOrder TorchFile::order() const {
  const auto* archive = std::get_if<TorchArchive>(&content_);
  return archive != nullptr && archive->big_endian() ? ByteOrder::big : ByteOrder::little;
}

std::size_t TorchFile::records() const {
  const auto* archive = std::get_if<TorchArchive>(&content_);
  return archive != nullptr ? archive->zip().entries().size()
                            : std::get<LegacyStream>(content_).storages.size();
}

std::string TorchFile::producer() const {
  const auto* archive = std::get_if<TorchArchive>(&content_);
  if (archive == nullptr) return "torch before 1.6, or asked for its stream";
  if (archive->zip().find(".format_version") != nullptr) return "torch 2.7 or newer";
  if (archive->zip().find("byteorder") != nullptr) return "torch 2.1 to 2.6";
  return "torch 1.6 to 2.0";
}

bool TorchFile::is_in_order() const {
  const auto* archive = std::get_if<TorchArchive>(&content_);
  return archive == nullptr || archive->zip().find(kOtherOrderRecord) == nullptr;
}

Result<StoredRecord> TorchFile::record_of(const TorchTensor& tensor) const {
  if (const auto* archive = std::get_if<TorchArchive>(&content_)) {
    EBB_TRY_ASSIGN(const ZipEntry* entry, archive->record_of(tensor));
    EBB_TRY_ASSIGN(const std::uint64_t at, archive->zip().data_offset(*entry, headers_));
    return StoredRecord{at, *entry};
  }
  const LegacyStream& stream = std::get<LegacyStream>(content_);
  const auto found = stream.storages.find(tensor.storage.key);
  const std::string name = "storage '" + printable(tensor.storage.key) + "'";
  if (found == stream.storages.end())
    return refuse(Code::corrupt, source_->name(), 0, name + " is not in the list of storages");
  const LegacyStorage& storage = found->second;
  if (storage.bytes < tensor.storage.bytes)
    return refuse(Code::corrupt, source_->name(), storage.at,
                  compose("{} is declared with {} bytes but has {}", name, tensor.storage.bytes,
                          storage.bytes));
  return StoredRecord{storage.at,
                      {.name = tensor.storage.key,
                       .stored_size = storage.bytes,
                       .size = storage.bytes,
                       .header_at = storage.at}};
}

}  // namespace ebb::formats
