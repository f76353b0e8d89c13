// Writes zeros over bytes [begin, end) of a file with several large writes in flight, at background
// priority: the first write to a reserved extent costs journal work that no step should pay.
#pragma once

#include "ebb/libswap/queue/io_queue.h"

namespace ebb::libswap {

// Blocks. REQUIRES: begin and end are multiples of 4096; not the queue's thread.
Result<> zero_fill(IoQueue& io, FileId file, std::uint64_t begin, std::uint64_t end);

}  // namespace ebb::libswap
