// What the program's own streams are connected to. Asked once, at start.
#pragma once

#include <cstdint>

namespace libswap {

enum class StandardStream : std::uint8_t { output, error };

bool is_terminal(StandardStream stream);
// Columns of the terminal behind the stream; 0 when it is none or does not say.
std::uint32_t terminal_columns(StandardStream stream);

}  // namespace libswap
