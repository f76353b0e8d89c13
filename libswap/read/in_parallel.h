// in_parallel: the same work by several threads, until all of them are through or one fails.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "ebb/formats/core/result.h"

namespace ebb::libswap {

// Calls work(stop) `workers` times, at least once, each on a thread of its own but for one on the
// caller's. `stop` becomes true when one of them has failed; the first failure is the answer.
Result<> in_parallel(std::uint32_t workers,
                     const std::function<Result<>(const std::atomic<bool>& stop)>& work);

// `asked`; 0: two for each core, of which one can wait for the disk, and no more than 16.
std::uint32_t workers_or_default(std::uint32_t asked);

}  // namespace ebb::libswap
