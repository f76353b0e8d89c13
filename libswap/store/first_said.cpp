#include "ebb/libswap/store/first_said.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace ebb::libswap {

Result<std::string> first_said(Agreement& ranks, Rank rank, std::string_view mine) {
  constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
  constexpr std::size_t kPart = 7;  // bytes of a number that is not negative
  const std::int64_t me{index_of(rank)};
  EBB_TRY_ASSIGN(const std::int64_t first, ranks.agree(mine.empty() ? kNone : me));
  if (first == kNone) return std::string();
  const bool speaks = first == me;
  EBB_TRY_ASSIGN(const std::int64_t size,
                 ranks.agree(speaks ? static_cast<std::int64_t>(mine.size()) : kNone));
  std::string said(static_cast<std::size_t>(size), '\0');
  for (std::size_t at = 0; at < said.size(); at += kPart) {
    const std::size_t count = std::min(kPart, said.size() - at);
    std::int64_t part = speaks ? 0 : kNone;
    if (speaks) std::memcpy(&part, mine.data() + at, count);
    EBB_TRY_ASSIGN(part, ranks.agree(part));
    std::memcpy(said.data() + at, &part, count);
  }
  return said;
}

}  // namespace ebb::libswap
