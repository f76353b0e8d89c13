// DeviceRoom: memory of a device, handed out in pieces to whoever works there for a while. First
// fit; pieces that are given back join their neighbours. One thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "ebb/libswap/device/device.h"

namespace ebb::libswap {

class DeviceRoom {
 public:
  static Result<DeviceRoom> make(Device& device, std::uint64_t bytes);

  // Aligned to 256 bytes. nullopt: there is no such piece now.
  std::optional<Buffer> take(std::uint64_t bytes);
  // REQUIRES: nobody uses it any more.
  void give_back(const Buffer& piece);

 private:
  explicit DeviceRoom(DeviceMemory memory) : memory_(std::move(memory)) {}

  DeviceMemory memory_;
  std::map<std::uint64_t, std::uint64_t> free_;  // bytes, by where they begin
};

}  // namespace ebb::libswap
