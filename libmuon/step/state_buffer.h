// StateBuffer: where a trainer has a state of a parameter, for Engine::read_states() and
// write_states(). A value.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "ebb/libswap/device/device.h"

namespace ebb::libmuon {

// Elements of what this rank holds of the parameter as a weight, in the weights layout's pieces:
// fp32, in the host's memory; empty where it holds nothing.
struct StateBuffer {
  std::uint32_t param = 0;
  libswap::Buffer pieces;
};

// One state, by its name.
struct StateBuffers {
  std::string_view state;
  std::span<const StateBuffer> buffers;
};

}  // namespace ebb::libmuon
