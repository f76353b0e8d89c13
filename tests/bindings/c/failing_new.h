// Allocations that fail where a test says so, in programs that have operator new from here.
#pragma once

#include <cstdint>

namespace ebb::c {

// Whose: the calling thread's alone, or every thread's.
enum class Of : std::uint8_t { this_thread, all_threads };

// The k-th allocation from now on fails, and those after it work again; 0: none does.
void fail_allocation(std::uint64_t k, Of of);
// How many are left up to the one that fails: 0 when it has.
std::uint64_t allocations_left();

}  // namespace ebb::c
