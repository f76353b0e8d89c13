#include "formats/torch/record_check.h"

#include <algorithm>

#include "formats/core/crc32c.h"
#include "formats/core/json_text.h"
#include "formats/core/units.h"
#include "formats/torch/refuse.h"

namespace formats {
namespace {

constexpr std::uint64_t kPass = 1 * MiB;

Result<> compare(const ByteSource& source, const CheckedRecord& record, std::uint32_t crc) {
  if (crc == record.crc) return {};
  return refuse(Code::corrupt, source.name(), record.header_at,
                "record '" + printable(record.name) + "' fails its CRC32 check");
}

}  // namespace

Result<> RecordCheck::saw(const ByteSource& source, const CheckedRecord& record,
                          std::uint64_t first, ByteView bytes) const {
  const bool ends = first + bytes.size() == record.size;
  if (first == 0 && ends) return compare(source, record, crc32_zip(0, bytes));
  auto& slot = slots_[(record.at >> 6) % slots_.size()];
  const std::shared_ptr<const Progress> before = slot.load();
  const bool goes_on = before != nullptr && before->at == record.at && before->next == first &&
                       before->file == source.name();
  if (first != 0 && !goes_on) return ends ? read_through(source, record) : Result<>();
  const std::uint32_t crc = crc32_zip(first == 0 ? 0 : before->crc, bytes);
  if (ends) return compare(source, record, crc);
  slot.store(std::make_shared<const Progress>(
      Progress{std::string(source.name()), record.at, first + bytes.size(), crc}));
  return {};
}

Result<> RecordCheck::read_through(const ByteSource& source, const CheckedRecord& record) {
  ByteVector pass(static_cast<std::size_t>(std::min(kPass, record.size)));
  std::uint32_t crc = 0;
  for (std::uint64_t at = 0; at < record.size; at += pass.size()) {
    const std::span<std::byte> part =
        std::span(pass).first(std::min<std::uint64_t>(pass.size(), record.size - at));
    TRY(source.read(record.at + at, part));
    crc = crc32_zip(crc, part);
  }
  return compare(source, record, crc);
}

}  // namespace formats
