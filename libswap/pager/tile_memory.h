// TileMemory: where tiles lie in memory: places of the host for those at home there, for frames and
// for bounces, one behind the other, and places of the device. Constant once allocated; which place
// is whose is the TileCache's affair.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "ebb/libswap/device/device.h"
#include "ebb/libswap/pager/budget.h"
#include "ebb/libswap/sys/aligned_buffer.h"

namespace ebb::libswap {

class TileMemory {
 public:
  // `device`, which is borrowed, has places if tiles are at home there; null if none are.
  static Result<TileMemory> allocate(const Homes& homes, std::uint64_t tile_bytes, Device* device);

  std::uint64_t tile_bytes() const { return tile_bytes_; }
  // Of the host.
  std::span<std::byte> all() { return host_.bytes(); }
  std::uint64_t places() const { return host_.size() / tile_bytes_; }
  std::span<std::byte> at(std::uint64_t place, std::uint64_t count = 1) {
    return all().subspan(place * tile_bytes_, count * tile_bytes_);
  }
  Buffer on_device(std::uint64_t place) {
    return there_.buffer().sub(place * tile_bytes_, tile_bytes_);
  }
  // Null where no tile is at home there.
  const Device* device() { return there_.buffer().device; }

 private:
  explicit TileMemory(std::uint64_t tile_bytes) : tile_bytes_(tile_bytes) {}

  std::uint64_t tile_bytes_;
  AlignedBuffer host_;
  Pinned pinned_;  // that memory, for the device
  DeviceMemory there_;
};

// Places of the host that no tile has.
class FreePlaces {
 public:
  FreePlaces(std::vector<std::uint64_t> frames, std::vector<std::uint64_t> bounces)
      : frames_(std::move(frames)), bounces_(std::move(bounces)) {}

  const std::vector<std::uint64_t>& frames() const { return frames_; }
  const std::vector<std::uint64_t>& bounces() const { return bounces_; }
  std::uint64_t take_frame() { return take(frames_); }
  std::uint64_t take_bounce() { return take(bounces_); }
  void give_frame(std::uint64_t place) { frames_.push_back(place); }
  void give_bounce(std::uint64_t place) { bounces_.push_back(place); }

 private:
  static std::uint64_t take(std::vector<std::uint64_t>& places) {
    EBB_CHECK(!places.empty());
    const std::uint64_t last = places.back();
    places.pop_back();
    return last;
  }

  std::vector<std::uint64_t> frames_, bounces_;
};

}  // namespace ebb::libswap
