#include "ebb/formats/torch_save/copies.h"

#include <algorithm>

#include "ebb/formats/core/compose.h"
#include "ebb/formats/core/units.h"
#include "ebb/formats/zip/inflate.h"

namespace ebb::formats::torch_save {
namespace {

// Both are the same part of records of which a checksum is known.
bool lie_alike(const StoredCopy& one, const StoredCopy& other) {
  return one.record.entry.has_crc() && other.record.entry.has_crc() && one.order == other.order &&
         one.record.entry.size == other.record.entry.size &&
         one.tensor.first == other.tensor.first && one.tensor.strides == other.tensor.strides;
}

bool fills_record(const StoredCopy& copy) {
  return copy.tensor.row_major() && copy.tensor.bytes() == copy.record.entry.size;
}

class Elements {
 public:
  explicit Elements(const StoredCopy& copy) : copy_(copy), source_(copy.source) {
    if (!copy.record.entry.deflated) return;
    source_ = std::make_shared<InflateSource>(copy.source, copy.record.at, copy.record.entry);
    at_ = 0;
  }
  Result<> read(std::uint64_t first, std::span<std::byte> into) const {
    return read_elements(*source_, at_, copy_.tensor, copy_.order, first, into);
  }

 private:
  const StoredCopy& copy_;
  std::shared_ptr<const ByteSource> source_;
  std::uint64_t at_ = copy_.record.at;
};

}  // namespace

Result<> read_copy(const StoredCopy& copy, std::uint64_t first, std::span<std::byte> into) {
  return Elements(copy).read(first, into);
}

Result<bool> same_elements(const StoredCopy& one, const StoredCopy& other, std::uint64_t& budget) {
  constexpr std::uint64_t kBlock = MiB;
  if (one.tensor.dtype != other.tensor.dtype || one.tensor.shape != other.tensor.shape)
    return false;
  if (lie_alike(one, other)) {
    if (one.record.entry.crc == other.record.entry.crc) return true;
    if (fills_record(one)) return false;
  }
  const Elements mine(one), its(other);
  const std::uint64_t bytes = one.tensor.bytes();
  if (bytes > budget)
    return Error{Code::limit,
                 compose("{}: its tensors share their storages so often that comparing "
                         "them with another rank's would never end",
                         other.source->name())};
  budget -= bytes;
  ByteVector here(std::min(bytes, kBlock)), there(here.size());
  for (std::uint64_t at = 0; at < bytes; at += kBlock) {
    const auto count = static_cast<std::size_t>(std::min(kBlock, bytes - at));
    EBB_TRY(mine.read(at, std::span(here).first(count)));
    EBB_TRY(its.read(at, std::span(there).first(count)));
    if (!std::ranges::equal(std::span(here).first(count), std::span(there).first(count)))
      return false;
  }
  return true;
}

}  // namespace ebb::formats::torch_save
