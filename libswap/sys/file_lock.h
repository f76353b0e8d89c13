// File locks. Exclusive ones by flock, with the holder written into the file so that the one who is
// refused can say who it is: "pid start-time boot-id"; the last two tell a stale pid from a live
// one. Shared ones by ranges of bytes, which belong to the open file: another descriptor of the
// same process that is closed does not end them, the end of the process does.
#pragma once

#include <cstdint>
#include <string>

#include "ebb/formats/core/result.h"

namespace ebb::libswap {

// Of this machine, since it was started: what processes compare to know whether they share one.
std::string boot_id();

// REQUIRES: `descriptor` is open for reading and writing, without O_DIRECT. Waits up to 0.3 s,
// because the kernel may hold a killed process's files for a moment. Code::busy names the holder.
// That the record could not be written (a full disk) is no failure: it is for messages only.
Result<> lock_file(int descriptor, const std::string& path);
void unlock_file(int descriptor);

// Bytes [first, first + count), count 0: all from there on; they may lie behind the file's end. It
// is enough that the descriptor can read. False: the file system has no such locks, or refuses.
bool lock_shared(int descriptor, std::uint64_t first, std::uint64_t count);
// Whether a shared lock of another open file covers the byte; false where there are no such locks.
bool is_locked_shared(int descriptor, std::uint64_t byte);

}  // namespace ebb::libswap
