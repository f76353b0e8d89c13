// together(): what each rank does on its own for a long time, without being taken for dead.
#pragma once

#include <functional>
#include <string_view>

#include "ebb/libmuon/comm/communicator.h"

namespace ebb::libmuon {

// Collective. Runs `work` on every rank and answers as agree_all() does. `work` runs on a thread of
// its own and must not call `ranks`: meanwhile the ranks meet in every quarter of their limit, so
// that a disk may be as slow as it likes. Returns only when this rank's work has ended.
Result<> together(Communicator& ranks, std::string_view doing,
                  const std::function<Result<>()>& work);

// The same where what the ranks do meanwhile is the caller's: `meanwhile`, on the calling thread,
// returns when all ranks' work has ended or they cannot meet any more; `ended` tells it so of this
// rank's.
struct Meanwhile {
  std::function<Result<>()> meet;
  std::function<void()> ended;
};
Result<> together(Communicator& ranks, std::string_view doing,
                  const std::function<Result<>()>& work, const Meanwhile& meanwhile);

}  // namespace ebb::libmuon
