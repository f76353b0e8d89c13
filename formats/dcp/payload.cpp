#include "ebb/formats/dcp/payload.h"

#include <algorithm>

#include "ebb/formats/core/decompress.h"
#include "ebb/formats/core/refuse.h"
#include "ebb/formats/core/units.h"
#include "ebb/formats/pickle/known_globals.h"
#include "ebb/formats/torch/elements.h"
#include "ebb/formats/zip/record_check.h"

namespace ebb::formats::dcp {
namespace {

constexpr std::uint64_t kMaxValue = 256 * MiB;        // one BYTE_IO item, decoded
constexpr std::uint64_t kExpansion = 64;              // of a compressed value, at no charge
constexpr std::uint64_t kArchiveOverhead = 64 * KiB;  // what an archive of one tensor adds to it

constexpr std::uint64_t kReadAtOnce = 64 * KiB;  // of an item; longer ones are read in parts

// A file of which one item was read at once: parsing an archive looks at a dozen places in it.
class ItemAtOnce : public ByteSource {
 public:
  static Result<std::shared_ptr<const ByteSource>> of(std::shared_ptr<const ByteSource> file,
                                                      std::uint64_t first, std::uint64_t bytes) {
    EBB_TRY_ASSIGN(ByteVector item, read_bytes(*file, first, bytes, kReadAtOnce));
    return std::shared_ptr<const ByteSource>(
        std::make_shared<ItemAtOnce>(std::move(file), first, std::move(item)));
  }
  ItemAtOnce(std::shared_ptr<const ByteSource> file, std::uint64_t first, ByteVector item)
      : file_(std::move(file)), first_(first), item_(std::move(item)) {}

  std::uint64_t size() const override { return file_->size(); }
  std::string_view name() const override { return file_->name(); }
  Result<> read(std::uint64_t offset, std::span<std::byte> into) const override {
    const bool held = offset >= first_ && offset - first_ <= item_.size() &&
                      into.size() <= item_.size() - (offset - first_);
    if (!held) return file_->read(offset, into);
    std::copy_n(item_.begin() + static_cast<std::ptrdiff_t>(offset - first_), into.size(),
                into.begin());
    return {};
  }

 private:
  std::shared_ptr<const ByteSource> file_;
  std::uint64_t first_;
  ByteVector item_;
};

// Out of an archive whose records lie as they are: any part, whatever the tensor's strides.
Result<> read_stored(const SourceTree& tree, const TorchArchive& archive, const TorchTensor& tensor,
                     const ZipEntry& record, std::uint64_t first, std::span<std::byte> into) {
  const ByteSource& source = archive.zip().source();
  EBB_TRY_ASSIGN(const std::uint64_t at, archive.zip().data_offset(record));
  const ByteOrder order = archive.big_endian() ? ByteOrder::big : ByteOrder::little;
  EBB_TRY(read_elements(source, at, tensor, order, first, into));
  if (!record.has_crc()) return {};
  const CheckedRecord checked{record.name, archive.zip().offset() + record.header_at, at,
                              record.size, record.crc};
  const bool last = first + into.size() == tensor.bytes();
  if (!tensor.row_major() || order != ByteOrder::little)
    return last ? check_record(source, checked) : Result<>();
  // The archive holds this tensor alone: what lies around it is nobody's.
  const std::uint64_t begin = tensor.first * bytes_of(tensor.dtype);
  const std::uint64_t end = begin + tensor.bytes();
  std::vector<FlatRange> gaps;
  if (first == 0 && begin > 0) gaps.push_back({0, begin});
  if (last && end < record.size) gaps.push_back({end, record.size - end});
  return check_part(tree, source, checked, begin + first, into, gaps);
}

}  // namespace

std::string Payloads::path_of(const PayloadPlace& place) const {
  return compose("{}/{}", tree_->root(), place.file);
}

Result<TorchArchive> Payloads::open(const PayloadPlace& place, std::uint64_t plain_bytes,
                                    std::uint64_t plain_limit, PickleLimits limits) const {
  EBB_TRY_ASSIGN(std::shared_ptr<const ByteSource> source, tree_->open(place.file));
  if (place.coding == 0) {
    const bool there = place.offset <= source->size() &&
                       place.length <= source->size() - place.offset;  // else it says so itself
    if (there && place.length <= kReadAtOnce) {
      EBB_TRY_ASSIGN(source, ItemAtOnce::of(std::move(source), place.offset, place.length));
    }
    return TorchArchive::open(std::move(source), place.offset, place.length, limits);
  }
  std::string where(source->name());
  where += ':';
  where += std::to_string(place.offset);
  // zstd never expands what it cannot compress by more than one part in 256, plus its headers.
  const std::uint64_t packed_limit = plain_limit + plain_limit / 128 + kArchiveOverhead;
  EBB_TRY_ASSIGN(ByteVector bytes, unzstd(*source, place.offset, place.length,
                                          plain_bytes + kArchiveOverhead, packed_limit, where));
  for (std::uint64_t pass = 1; pass < place.coding; ++pass) {
    EBB_TRY_ASSIGN(bytes, unzstd(bytes, packed_limit, where));
  }
  const std::uint64_t size = bytes.size();
  limits.nodes = std::min(limits.nodes, kMaxCompressedNodes);
  return TorchArchive::open(
      std::make_shared<MemorySource>(where + " (decompressed)", std::move(bytes)), 0, size, limits);
}

Result<> Payloads::read(const PayloadPlace& place, const Shape& shape, DType dtype,
                        std::string_view label, std::uint64_t first,
                        std::span<std::byte> into) const {
  auto done = place.coding == kRawItem ? read_raw(place, first, into)
                                       : read_tensor(place, shape, dtype, first, into);
  if (!done) return std::move(done).error().about(label);
  return {};
}

Result<Payloads::Opened> Payloads::open_tensor(const PayloadPlace& place, const Shape& shape,
                                               DType dtype) const {
  const std::uint64_t bytes = volume(shape) * bytes_of(dtype);
  EBB_TRY_ASSIGN(TorchArchive archive, open(place, bytes, bytes + kArchiveOverhead));
  EBB_TRY(require_known_globals(archive.graph()));
  EBB_TRY_ASSIGN(TorchTensor tensor, torch_tensor(archive.graph(), archive.graph().root()));
  if (tensor.shape != shape || tensor.dtype != dtype)
    return refuse(
        Code::corrupt, path_of(place), place.offset,
        compose(
            "the metadata declares {} of shape {} but the file holds a tensor of {} and shape {}",
            name_of(dtype), to_string(shape), name_of(tensor.dtype), to_string(tensor.shape)));
  EBB_TRY_ASSIGN(const ZipEntry* record, archive.record_of(tensor));
  return Opened{std::move(archive), std::move(tensor), record, std::nullopt};
}

Result<std::shared_ptr<const Payloads::Opened>> Payloads::decoded(const PayloadPlace& place,
                                                                  const Shape& shape,
                                                                  DType dtype) const {
  const auto make = [&]() -> Result<SourceTree::Decoded> {
    EBB_TRY_ASSIGN(Opened item, open_tensor(place, shape, dtype));
    if (item.record->deflated) {
      const std::uint64_t limit = item.tensor.bytes() + kArchiveOverhead;
      EBB_TRY_ASSIGN(item.elements,
                     item.archive.elements(item.tensor, std::max(limit, place.length)));
    }
    return SourceTree::Decoded(std::make_shared<const Opened>(std::move(item)));
  };
  const std::string key = compose("{}:{}", place.file, place.offset);
  EBB_TRY_ASSIGN(const SourceTree::Decoded item,
                 tree_->decoded(key, volume(shape) * bytes_of(dtype), make));
  return std::static_pointer_cast<const Opened>(item);
}

Result<> Payloads::read_tensor(const PayloadPlace& place, const Shape& shape, DType dtype,
                               std::uint64_t first, std::span<std::byte> into) const {
  if (place.coding == 0) {
    EBB_TRY_ASSIGN(const Opened item, open_tensor(place, shape, dtype));
    if (!item.record->deflated)
      return read_stored(*tree_, item.archive, item.tensor, *item.record, first, into);
  }
  EBB_TRY_ASSIGN(const std::shared_ptr<const Opened> item, decoded(place, shape, dtype));
  if (!item->elements)
    return read_stored(*tree_, item->archive, item->tensor, *item->record, first, into);
  std::copy_n(item->elements->begin() + static_cast<std::ptrdiff_t>(first), into.size(),
              into.begin());
  return {};
}

Result<> Payloads::read_raw(const PayloadPlace& place, std::uint64_t first,
                            std::span<std::byte> into) const {
  EBB_TRY_ASSIGN(const std::shared_ptr<const ByteSource> source, tree_->open(place.file));
  return source->read(place.offset + first, into);
}

Result<Value> Payloads::value(const PayloadPlace& place, std::uint64_t& purse) const {
  if (place.length > kMaxValue)
    return refuse(Code::limit, path_of(place), place.offset,
                  compose("a value of {} bytes; the limit is {}", place.length, kMaxValue));
  const std::uint64_t free = place.length * kExpansion;
  EBB_TRY_ASSIGN(const TorchArchive archive,
                 open(place, 0, std::min(kMaxValue, free + purse), {.unfold = purse}));
  EBB_TRY_ASSIGN(Value value, value_of(archive.graph(), archive.graph().root(), &archive));
  EBB_TRY(refuse_hidden_calls(archive.graph(), {&value}));
  const std::uint64_t decoded = archive.length() - std::min(archive.length(), free);
  purse -= std::min(purse, decoded + archive.graph().unfolded());
  return value;
}

}  // namespace ebb::formats::dcp
