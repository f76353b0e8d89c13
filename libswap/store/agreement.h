// Agreement: the one thing the store needs from other ranks. libmuon's Communicator is one.
#pragma once

#include <cstdint>
#include <string_view>

#include "ebb/formats/core/result.h"

namespace ebb::libswap {

class Agreement {
 public:
  virtual ~Agreement() = default;
  // The smallest of all ranks' numbers, the same on every rank. Collective.
  virtual Result<std::int64_t> agree(std::int64_t mine) = 0;
};

// A world of one rank.
class Alone : public Agreement {
 public:
  Result<std::int64_t> agree(std::int64_t mine) override { return mine; }
};

// Whether all ranks got through: mine if it is an error, Code::peer if another's is. Collective.
// `doing` says with what, for the message.
inline Result<> agree_all(Agreement& ranks, const Result<>& mine, std::string_view doing) {
  EBB_TRY_ASSIGN(const std::int64_t worst, ranks.agree(mine ? 1 : 0));
  if (!mine) return mine;
  if (worst == 0)
    return Error{Code::peer, compose("another rank failed while {}", doing),
                 "its own message says why"};
  return {};
}

}  // namespace ebb::libswap
