#include "ebb/formats/zip/record_check.h"

#include <algorithm>
#include <utility>

#include "ebb/formats/core/crc32c.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/refuse.h"
#include "ebb/formats/core/units.h"

namespace ebb::formats {
namespace {

constexpr std::uint64_t kPass = 1 * MiB;

Result<> compare(const ByteSource& source, const CheckedRecord& record, std::uint32_t crc) {
  if (crc == record.crc) return {};
  return refuse(Code::corrupt, source.name(), record.header_at,
                "record '" + printable(record.name) + "' fails its CRC32 check");
}

// The record's bytes [first, end), some at a time: take(first, bytes).
template <typename Take>
Result<> in_passes(const ByteSource& source, const CheckedRecord& record, std::uint64_t first,
                   std::uint64_t end, Take take) {
  ByteVector pass(static_cast<std::size_t>(std::min(kPass, end - first)));
  for (; first < end; first += pass.size()) {
    const std::span<std::byte> part =
        std::span(pass).first(std::min<std::uint64_t>(pass.size(), end - first));
    EBB_TRY(source.read(record.at + first, part));
    EBB_TRY(take(first, part));
  }
  return {};
}

}  // namespace

void RecordGaps::close(std::span<const std::uint64_t> sizes) {
  const auto before = [](const InRecord& a, const InRecord& b) {
    return std::pair(a.record, a.bytes.first) < std::pair(b.record, b.bytes.first);
  };
  if (!std::ranges::is_sorted(ranges_, before)) std::ranges::sort(ranges_, before);
  std::vector<InRecord> gaps;
  for (auto at = ranges_.begin(); at != ranges_.end();) {
    const std::uint32_t record = at->record;
    std::uint64_t held = 0;             // up to here
    std::uint64_t holder = at->holder;  // of what ends there
    const auto gap_until = [&](std::uint64_t next) {
      if (held < next) gaps.push_back({record, {held, next - held}, holder});
    };
    for (; at != ranges_.end() && at->record == record; ++at) {
      gap_until(at->bytes.first);
      const std::uint64_t end = at->bytes.first + at->bytes.count;
      if (held < end) holder = at->holder;
      held = std::max(held, end);
    }
    gap_until(sizes[record]);
  }
  gaps.shrink_to_fit();
  ranges_ = std::move(gaps);
}

std::vector<FlatRange> RecordGaps::beside(std::uint32_t record, FlatRange part,
                                          std::uint64_t holder) const {
  std::vector<FlatRange> found;
  const auto [first, last] = std::ranges::equal_range(ranges_, record, {}, &InRecord::record);
  if (first == last) return found;
  if (first->bytes.first == 0 && first->bytes.count == part.first && first->holder == holder)
    found.push_back(first->bytes);
  const std::uint64_t end = part.first + part.count;
  const auto after = std::ranges::lower_bound(first, last, end, {},
                                              [](const InRecord& gap) { return gap.bytes.first; });
  if (after != last && after->bytes.first == end && after->holder == holder)
    found.push_back(after->bytes);
  return found;
}

Result<> check_part(const SourceTree& tree, const ByteSource& source, const CheckedRecord& record,
                    std::uint64_t first, ByteView bytes, std::span<const FlatRange> gaps) {
  const std::string key = compose("{}:{}", source.name(), record.at);
  const auto see = [&](std::uint64_t at, ByteView part) -> Result<> {
    const auto crc = tree.seen(key, record.size, at, part);
    return crc ? compare(source, record, *crc) : Result<>();
  };
  for (const FlatRange& gap : gaps)
    EBB_TRY(in_passes(source, record, gap.first, gap.first + gap.count, see));
  return see(first, bytes);
}

Result<> check_record(const ByteSource& source, const CheckedRecord& record) {
  std::uint32_t crc = 0;
  EBB_TRY(in_passes(source, record, 0, record.size, [&](std::uint64_t, ByteView part) -> Result<> {
    crc = crc32_zip(crc, part);
    return {};
  }));
  return compare(source, record, crc);
}

}  // namespace ebb::formats
