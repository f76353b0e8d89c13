#include "formats/dcp/payload.h"

#include <algorithm>

#include "formats/core/crc32c.h"
#include "formats/core/decompress.h"
#include "formats/core/units.h"
#include "formats/torch/refuse.h"

namespace formats {
namespace {

constexpr std::uint64_t kMaxValue = 256 * MiB;        // one BYTE_IO item, decoded
constexpr std::uint64_t kExpansion = 64;              // of a compressed value, at no charge
constexpr std::uint64_t kArchiveOverhead = 64 * KiB;  // what an archive of one tensor adds to it
constexpr std::uint64_t kCrcPass = 1 * MiB;

Result<> check_crc(const TorchArchive& archive, const TorchArchive::Plain& plain) {
  std::uint32_t crc = 0;
  ByteVector pass(static_cast<std::size_t>(std::min(kCrcPass, plain.record->size)));
  for (std::uint64_t at = 0; at < plain.record->size; at += pass.size()) {
    const std::span<std::byte> part =
        std::span(pass).first(std::min<std::uint64_t>(pass.size(), plain.record->size - at));
    TRY(archive.zip().source().read(plain.record_at + at, part));
    crc = crc32_zip(crc, part);
  }
  if (crc != plain.record->crc) return archive.zip().crc_failure(*plain.record);
  return {};
}

}  // namespace

std::string DcpPayloads::path_of(const DcpPlace& place) const {
  return std::string(tree_->root()) + "/" + place.file;
}

Result<TorchArchive> DcpPayloads::open(const DcpPlace& place, std::uint64_t plain_limit,
                                       PickleLimits limits) const {
  TRY_ASSIGN(std::shared_ptr<const ByteSource> source, tree_->open(place.file));
  if (place.zstd == 0)
    return TorchArchive::open(std::move(source), place.offset, place.length, limits);
  std::string where(source->name());
  where += ':';
  where += std::to_string(place.offset);
  // zstd never expands what it cannot compress by more than one part in 256, plus its headers.
  const std::uint64_t packed_limit = plain_limit + plain_limit / 128 + kArchiveOverhead;
  TRY_ASSIGN(ByteVector bytes, read_bytes(*source, place.offset, place.length, packed_limit));
  for (std::uint64_t pass = 0; pass < place.zstd; ++pass) {
    TRY_ASSIGN(bytes, unzstd(bytes, packed_limit, where));
  }
  const std::uint64_t size = bytes.size();
  limits.nodes = std::min(limits.nodes, kMaxCompressedNodes);
  return TorchArchive::open(
      std::make_shared<MemorySource>(where + " (decompressed)", std::move(bytes)), 0, size, limits);
}

Result<> DcpPayloads::read(const DcpPlace& place, const Shape& shape, DType dtype,
                           std::string_view label, std::uint64_t first,
                           std::span<std::byte> into) const {
  auto done = read_tensor(place, shape, dtype, first, into);
  if (!done) return std::move(done).error().within(label);
  return {};
}

Result<> DcpPayloads::read_tensor(const DcpPlace& place, const Shape& shape, DType dtype,
                                  std::uint64_t first, std::span<std::byte> into) const {
  const std::uint64_t bytes = volume(shape) * bytes_of(dtype);
  TRY_ASSIGN(const TorchArchive archive, open(place, bytes + kArchiveOverhead));
  TRY_ASSIGN(const TorchTensor tensor, torch_tensor(archive.graph(), archive.graph().root()));
  if (tensor.shape != shape || tensor.dtype != dtype)
    return refuse(Code::corrupt, path_of(place), place.offset,
                  "the metadata declares " + std::string(name_of(dtype)) + " of shape " +
                      to_string(shape) + " but the file holds a tensor of " +
                      std::string(name_of(tensor.dtype)) + " and shape " + to_string(tensor.shape));
  TRY_ASSIGN(const std::optional<TorchArchive::Plain> plain, archive.plain(tensor));
  if (!plain) {
    TRY_ASSIGN(const ByteVector elements,
               archive.elements(tensor, std::max(bytes + kArchiveOverhead, place.length)));
    std::copy_n(elements.begin() + static_cast<std::ptrdiff_t>(first), into.size(), into.begin());
    return {};
  }
  TRY(archive.zip().source().read(plain->record_at + plain->first + first, into));
  if (!plain->record->has_crc()) return {};
  if (into.size() < plain->record->size)
    return first + into.size() == bytes ? check_crc(archive, *plain) : Result<>();
  if (crc32_zip(0, into) != plain->record->crc) return archive.zip().crc_failure(*plain->record);
  return {};
}

Result<Value> DcpPayloads::value(const DcpPlace& place, std::uint64_t& purse) const {
  if (place.length > kMaxValue)
    return refuse(Code::limit, path_of(place), place.offset,
                  "a value of " + std::to_string(place.length) + " bytes; the limit is " +
                      std::to_string(kMaxValue));
  const std::uint64_t free = place.length * kExpansion;
  TRY_ASSIGN(const TorchArchive archive,
             open(place, std::min(kMaxValue, free + purse), {.unfold = purse}));
  TRY_ASSIGN(Value value, value_of(archive.graph(), archive.graph().root(), &archive));
  const std::uint64_t decoded = archive.length() - std::min(archive.length(), free);
  purse -= std::min(purse, decoded + archive.graph().unfolded());
  return value;
}

}  // namespace formats
