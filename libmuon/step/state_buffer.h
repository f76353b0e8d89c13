// StateBuffer: where a trainer has a state of a parameter, for Engine::read_state() and
// write_state(). A value.
#pragma once

#include <cstdint>

#include "ebb/libswap/device/device.h"

namespace ebb::libmuon {

// Elements of what this rank holds of the parameter as a weight, in the weights layout's pieces:
// fp32, in the host's memory; empty where it holds nothing.
struct StateBuffer {
  std::uint32_t param = 0;
  libswap::Buffer pieces;
};

}  // namespace ebb::libmuon
