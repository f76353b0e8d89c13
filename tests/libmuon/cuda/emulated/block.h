// What the two parts of the emulation share: a block that uses shared memory of a launch begins,
// which thread runs.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ebb::emulated {

constexpr std::size_t kSharedBytes = 227u << 10;  // of a block, on Hopper

// `seed`: of what is early and what is late in it.
void begin_block(std::uint64_t seed, std::size_t threads);
std::size_t running();  // the thread's number in its block

}  // namespace ebb::emulated
