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

// Continues `crc` over the record's bytes [first, end).
Result<std::uint32_t> read_on(const ByteSource& source, const CheckedRecord& record,
                              std::uint32_t crc, std::uint64_t first, std::uint64_t end) {
  ByteVector pass(static_cast<std::size_t>(std::min(kPass, end - first)));
  for (; first < end; first += pass.size()) {
    const std::span<std::byte> part =
        std::span(pass).first(std::min<std::uint64_t>(pass.size(), end - first));
    TRY(source.read(record.at + first, part));
    crc = crc32_zip(crc, part);
  }
  return crc;
}

}  // namespace

Result<> check_part(const SourceTree& tree, const ByteSource& source, const CheckedRecord& record,
                    std::uint64_t first, ByteView bytes, Closing closing) {
  const SeenPart part{first, bytes.size(), crc32_zip(0, bytes)};
  if (part.size == record.size) return compare(source, record, part.crc);
  const std::string key = std::string(source.name()) + ":" + std::to_string(record.at);
  const std::vector<SeenPart> seen = tree.seen(key, part);
  const bool all = seen.size() == 1 && seen.front().size == record.size;
  if (!all && closing == Closing::not_yet) return {};
  std::uint64_t at = 0;
  std::uint32_t crc = 0;
  for (const SeenPart& one : seen) {
    TRY_ASSIGN(crc, read_on(source, record, crc, at, one.first));
    crc = crc32_zip_of_both(crc, one.crc, one.size);
    at = one.first + one.size;
  }
  TRY_ASSIGN(crc, read_on(source, record, crc, at, record.size));
  return compare(source, record, crc);
}

Result<> check_record(const ByteSource& source, const CheckedRecord& record) {
  TRY_ASSIGN(const std::uint32_t crc, read_on(source, record, 0, 0, record.size));
  return compare(source, record, crc);
}

}  // namespace formats
