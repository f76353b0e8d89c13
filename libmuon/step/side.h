// device_of: the device whose memory a Side of an engine's configuration names.
#pragma once

#include "ebb/libmuon/step/config.h"

namespace ebb::libmuon {

// Returns null where it is the host's memory.
inline libswap::Device* device_of(const EngineConfig& config, Side side) {
  return side == Side::device && config.accelerator != nullptr ? &config.accelerator->device()
                                                               : nullptr;
}

}  // namespace ebb::libmuon
