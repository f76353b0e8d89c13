// check_buffer: whether memory that a trainer hands over is what its layout says.
#pragma once

#include <cstdint>
#include <string_view>

#include "ebb/libmuon/step/config.h"
#include "ebb/libswap/device/device.h"

namespace ebb::libmuon {

// What the trainer hands over: `what`, in this layout, as that, on this side.
struct Wanted {
  std::string_view what;
  const ModelLayout& layout;
  DType ParamSpec::* dtype;
  Side side;
};

// The same where the dtype and the device are said.
struct WantedMemory {
  std::string_view what;
  const ModelLayout& layout;
  DType dtype;
  const libswap::Device* device;  // null: the host
  std::string_view dtype_hint = {}, device_hint = {};
};
// Says what of the buffer is not as it is wanted: its dtype, its size, its address or its device.
Result<> check_memory(const EngineConfig& config, Rank rank, std::uint32_t param,
                      const libswap::Buffer& given, const WantedMemory& wanted);
Result<> check_buffer(const EngineConfig& config, Rank rank, std::uint32_t param,
                      const libswap::Buffer& given, const Wanted& wanted);

}  // namespace ebb::libmuon
