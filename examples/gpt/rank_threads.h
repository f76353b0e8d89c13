// Ranks as threads of this process.
#pragma once

#include <functional>

#include "ebb/libmuon/comm/communicator.h"

namespace ebb::gpt {

// Runs `body` on one thread a rank and waits for all. The first error of any rank; that another one
// failed is the news only where nobody says more.
Result<> on_rank_threads(std::uint32_t world,
                         const std::function<Result<>(libmuon::Communicator&)>& body);

}  // namespace ebb::gpt
