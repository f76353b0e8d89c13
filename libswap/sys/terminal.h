// What the program's own streams are connected to. Asked once, at start.
#pragma once

#include <cstdint>

namespace ebb::libswap {

enum class StandardStream : std::uint8_t { output, error };

bool is_terminal(StandardStream stream);

}  // namespace ebb::libswap
