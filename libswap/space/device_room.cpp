#include "ebb/libswap/space/device_room.h"

#include <algorithm>
#include <iterator>

#include "ebb/formats/core/units.h"

namespace ebb::libswap {
namespace {

constexpr std::uint64_t kAlign = 256;

}  // namespace

Result<DeviceRoom> DeviceRoom::make(Device& device, std::uint64_t bytes) {
  EBB_TRY_ASSIGN(auto memory, device.allocate(bytes));
  DeviceRoom room(std::move(memory));
  room.free_.emplace(0, bytes);
  return room;
}

std::optional<Buffer> DeviceRoom::take(std::uint64_t bytes) {
  const std::uint64_t wanted = formats::align_up(bytes, kAlign);
  const auto found =
      std::ranges::find_if(free_, [&](const auto& piece) { return piece.second >= wanted; });
  if (found == free_.end()) return std::nullopt;
  const auto [first, size] = *found;
  free_.erase(found);
  if (size > wanted) free_.emplace(first + wanted, size - wanted);
  return memory_.buffer().sub(first, bytes);
}

void DeviceRoom::give_back(const Buffer& piece) {
  auto first = static_cast<std::uint64_t>(piece.data - memory_.buffer().data);
  std::uint64_t size = formats::align_up(piece.size(), kAlign);
  auto next = free_.lower_bound(first);
  if (next != free_.end() && next->first == first + size) {
    size += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin())
    if (const auto before = std::prev(next); before->first + before->second == first) {
      first = before->first;
      size += before->second;
      free_.erase(before);
    }
  free_.emplace(first, size);
}

}  // namespace ebb::libswap
