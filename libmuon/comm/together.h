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

}  // namespace ebb::libmuon
