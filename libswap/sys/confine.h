// Confinement of a process that is about to parse what nobody trusts: from here on it can compute,
// use a bounded amount of memory, talk over one descriptor it already has, and end.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ebb/formats/core/result.h"

namespace ebb::libswap {

struct Confinement {
  std::uint64_t memory = std::uint64_t{1} << 30;  // bytes of address space
  std::uint64_t cpu_seconds = 60;
  int descriptor = 0;  // the only one that may be read and written
};

// Takes away what the kernel lets it take away, for good. What it could not, one line each: a
// kernel without seccomp still gives resource limits. Code::io when even those are refused.
Result<std::vector<std::string>> confine_this_process(const Confinement& confinement);

// The other end of run_probe(): reads and writes of exactly as many bytes as asked for on the one
// descriptor; false when the other side has gone. Nothing here allocates.
bool read_exactly(int descriptor, std::byte* into, std::size_t count);
bool write_exactly(int descriptor, const std::byte* from, std::size_t count);
[[noreturn]] void leave_at_once(int code);  // no destructors, no handlers, nothing flushed

}  // namespace ebb::libswap
