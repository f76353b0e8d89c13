#include "ebb/libswap/store/agreement.h"

#include <string>

namespace ebb::libswap {

Result<> agree_all(Agreement& ranks, const Result<>& mine, std::string_view doing) {
  EBB_TRY_ASSIGN(const std::int64_t worst, ranks.agree(mine ? 1 : 0));
  if (!mine) return mine;
  if (worst == 0)
    return Error{Code::peer, compose("another rank failed while {}", doing),
                 "its own message says why"};
  return {};
}

}  // namespace ebb::libswap
