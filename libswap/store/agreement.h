// Agreement: the one thing the store needs from other ranks. Ranks: what a swap directory needs
// beside it. libmuon's Communicator is both.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/formats/core/bytes.h"
#include "ebb/formats/core/result.h"
#include "ebb/formats/core/units.h"

namespace ebb::libswap {

class Agreement {
 public:
  virtual ~Agreement() = default;
  // The smallest of all ranks' numbers, the same on every rank. Collective.
  virtual Result<std::int64_t> agree(std::int64_t mine) = 0;
};

// Files of which each rank reaches some; they have the same numbers on all ranks.
struct FilesApart {
  // Reads bytes of one that this rank reaches.
  std::function<Result<>(std::uint32_t file, std::uint64_t offset, std::span<std::byte> into)> read;
  std::string who;  // for people: "FILE: 1 of 2 ranks reaches it"
};
// Reads bytes of one that `holder` reaches, and waits until they are here. Any thread.
using ReadThere = std::function<Result<>(Rank holder, std::uint32_t file, std::uint64_t offset,
                                         std::span<std::byte> into)>;

class Ranks : public Agreement {
 public:
  virtual Rank rank() const = 0;
  virtual std::uint32_t world() const = 0;
  // Element-wise exact sum over all ranks, the same on every rank; order-free. Collective.
  virtual Result<> sum(std::span<std::int64_t> numbers) = 0;
  // Runs `work` on every rank, for as long as it takes, and answers as agree_all() does. `work`
  // must not call the ranks; where these would take a silent rank for dead it is on a thread of its
  // own. Collective.
  virtual Result<> together(std::string_view doing, const std::function<Result<>()>& work);
  // The same, where `work` may read what other ranks reach; their reads of this rank's files come
  // from the calling thread. Code::unsupported, on every rank: these pass no bytes. Collective.
  virtual Result<> together_reading(std::string_view doing, const FilesApart& files,
                                    const std::function<Result<>(const ReadThere& there)>& work);
};

// A world of one rank.
class Alone : public Ranks {
 public:
  Rank rank() const override { return Rank{0}; }
  std::uint32_t world() const override { return 1; }
  Result<std::int64_t> agree(std::int64_t mine) override { return mine; }
  Result<> sum(std::span<std::int64_t> /*numbers*/) override { return {}; }
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

// The same, and the lowest rank that failed is named.
inline Result<> agree_all(Ranks& ranks, const Result<>& mine, std::string_view doing) {
  constexpr auto kNone = std::numeric_limits<std::int64_t>::max();
  EBB_TRY_ASSIGN(const std::int64_t first,
                 ranks.agree(mine ? kNone : std::int64_t{formats::index_of(ranks.rank())}));
  if (!mine) return mine;
  if (first != kNone)
    return Error{Code::peer, compose("rank {} failed while {}", first, doing),
                 "its own message says why"};
  return {};
}

// What every rank says, by its number; the same on every rank. Collective.
Result<std::vector<formats::ByteVector>> gather(Ranks& ranks, formats::ByteView mine);

}  // namespace ebb::libswap
