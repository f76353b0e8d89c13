#include "ebb/formats/torch/archive.h"

#include <algorithm>

#include "ebb/formats/core/refuse.h"
#include "ebb/formats/core/units.h"
#include "ebb/formats/torch/elements.h"
#include "ebb/formats/torch/legacy.h"

namespace ebb::formats {
namespace {

constexpr std::uint64_t kMaxPickle = 1 * GiB;
constexpr std::uint64_t kMaxInflatedPickle = 32 * MiB;  // no torch deflates it, and repackers may
constexpr std::uint64_t kMaxTensors = 256 * MiB;        // one in a value
constexpr std::uint64_t kMaxSmallRecord = 64;

Error bad_archive(const ZipReader& zip, std::string_view why) {
  return refuse(Code::corrupt, zip.source().name(), zip.offset(), why);
}

// The old stream and the oldest tar are valid checkpoints of a kind this version does not read.
Result<> refuse_old_forms(const ByteSource& source, std::uint64_t offset, std::uint64_t length) {
  constexpr std::uint64_t kTarMagicAt = 257;
  if (offset > source.size() || length > source.size() - offset || length < kLegacyMagicBytes)
    return {};
  const std::uint64_t wanted = std::min<std::uint64_t>(length, kTarMagicAt + 5);
  EBB_TRY_ASSIGN(const ByteVector head, read_bytes(source, offset, wanted, wanted));
  if (is_legacy_magic(head))
    return refuse(Code::unsupported, source.name(), offset,
                  "a torch.save stream older than torch 1.6; save it again with a newer torch");
  if (wanted == kTarMagicAt + 5 && text_of(ByteView(head).subspan(kTarMagicAt, 5)) == "ustar")
    return refuse(Code::unsupported, source.name(), offset,
                  "a tar archive of torch 0.1; save it again with a newer torch");
  return {};
}

Result<> check_version(const ZipReader& zip) {
  if (zip.find("constants.pkl") != nullptr)
    return refuse(Code::unsupported, zip.source().name(), zip.offset(),
                  "a TorchScript archive holds code, not a checkpoint");
  const ZipEntry* entry = zip.find("version");
  if (entry == nullptr) entry = zip.find(".data/version");
  if (entry == nullptr) return bad_archive(zip, "the archive has no record 'version'");
  EBB_TRY_ASSIGN(const ByteVector bytes, zip.read(*entry, kMaxSmallRecord));
  const std::string_view text = text_of(bytes);
  const bool known = (text.size() == 1 || (text.size() == 2 && text[1] == '\n')) &&
                     text[0] >= '1' && text[0] <= '9';
  if (known || text == "10" || text == "10\n") return {};
  return refuse(Code::unsupported, zip.source().name(), zip.offset(),
                "an archive of unknown version; this version reads 1 to 10");
}

Result<bool> is_big_endian(const ZipReader& zip) {
  const ZipEntry* entry = zip.find("byteorder");
  if (entry == nullptr) return false;
  EBB_TRY_ASSIGN(const ByteVector bytes, zip.read(*entry, kMaxSmallRecord));
  if (text_of(bytes) == "little") return false;
  if (text_of(bytes) == "big") return true;
  return bad_archive(zip, "record 'byteorder' is neither 'little' nor 'big'");
}

}  // namespace

Result<TorchArchive> TorchArchive::open(std::shared_ptr<const ByteSource> source,
                                        std::uint64_t offset, std::uint64_t length,
                                        PickleLimits limits) {
  EBB_TRY(refuse_old_forms(*source, offset, length));
  EBB_TRY_ASSIGN(ZipReader zip, ZipReader::open(source, offset, length));
  EBB_TRY(check_version(zip));
  const ZipEntry* pickle = zip.find("data.pkl");
  if (pickle == nullptr) return bad_archive(zip, "the archive has no record 'data.pkl'");
  if (pickle->deflated) limits.nodes = std::min(limits.nodes, kMaxCompressedNodes);
  EBB_TRY_ASSIGN(ByteVector bytes,
                 zip.read(*pickle, pickle->deflated ? kMaxInflatedPickle : kMaxPickle));
  std::string where(source->name());
  where += ':';
  where += std::to_string(offset);
  where += ": " + pickle->name;
  EBB_TRY_ASSIGN(PickleGraph graph, PickleGraph::parse(std::move(bytes), std::move(where), limits));
  EBB_TRY_ASSIGN(const bool big_endian, is_big_endian(zip));
  TorchArchive archive(std::move(zip), std::move(graph));
  archive.big_endian_ = big_endian;
  archive.length_ = length;
  return archive;
}

Result<const ZipEntry*> TorchArchive::record_of(const TorchTensor& tensor) const {
  const ZipEntry* record = zip_.find("data/" + tensor.storage.key);
  if (record == nullptr)
    return bad_archive(zip_, "storage '" + tensor.storage.key + "' has no record in the archive");
  if (record->size < tensor.storage.bytes)
    return bad_archive(zip_,
                       compose("storage '{}' is declared with {} bytes but its record has {} bytes",
                               tensor.storage.key, tensor.storage.bytes, record->size));
  return record;
}

Result<std::optional<TorchArchive::Plain>> TorchArchive::plain(const TorchTensor& tensor) const {
  EBB_TRY_ASSIGN(const ZipEntry* record, record_of(tensor));
  const bool as_wanted =
      !record->deflated && tensor.row_major() && (!big_endian_ || swap_unit(tensor.dtype) == 1);
  if (!as_wanted) return std::optional<Plain>{};
  EBB_TRY_ASSIGN(const std::uint64_t at, zip_.data_offset(*record));
  return std::optional<Plain>{Plain{at, tensor.first * bytes_of(tensor.dtype), record}};
}

Result<ByteVector> TorchArchive::elements(const TorchTensor& tensor, std::uint64_t limit) const {
  EBB_TRY_ASSIGN(const ZipEntry* record, record_of(tensor));
  const std::uint64_t bytes = tensor.bytes();
  if (bytes > limit)
    return refuse(Code::limit, zip_.source().name(), zip_.offset(),
                  compose("a tensor of {} bytes; the limit is {}", bytes, limit));
  EBB_TRY_ASSIGN(ByteVector storage, zip_.read(*record, limit));
  ByteVector into(static_cast<std::size_t>(bytes));
  EBB_TRY(read_elements(MemorySource(record->name, std::move(storage)), 0, tensor,
                        big_endian_ ? ByteOrder::big : ByteOrder::little, 0, into));
  return into;
}

Result<ByteVector> TorchArchive::value_elements(const TorchTensor& tensor) const {
  EBB_TRY_ASSIGN(const ZipEntry* record, record_of(tensor));
  const std::uint64_t cost =
      std::min(record->size, kMaxTensors) + std::min(tensor.bytes(), kMaxTensors);
  made_ += cost;
  if (made_ / 2 > length_) EBB_TRY(graph_.charge(std::min(cost, made_ - 2 * length_)));
  return elements(tensor, kMaxTensors);
}

}  // namespace ebb::formats
