// File locks: flock, with the holder written into the file so that the one who is refused can say
// who it is. A record is "pid start-time boot-id"; the last two tell a stale pid from a live one.
#pragma once

#include <string>

#include "ebb/formats/core/result.h"

namespace ebb::libswap {

// REQUIRES: `descriptor` is open for reading and writing, without O_DIRECT. Waits up to 0.3 s,
// because the kernel may hold a killed process's files for a moment. Code::busy names the holder.
formats::Result<> lock_file(int descriptor, const std::string& path);
void unlock_file(int descriptor);

}  // namespace ebb::libswap
