// What a store cannot give back where some of its ranks' folders are out of reach of all.
#pragma once

#include <span>
#include <string>

#include "ebb/libswap/queue/io_queue.h"
#include "ebb/libswap/store/agreement.h"

namespace ebb::libswap {

// Collective. "all of a, b; parts of c", from what the manifests that are left say; "" where none
// is left. `folders`: where this rank may find rank folders of the store, which had `world` ranks.
Result<std::string> what_is_lost(IoQueue& io, std::span<const fs::path> folders,
                                 std::uint32_t world, Ranks& ranks);

}  // namespace ebb::libswap
