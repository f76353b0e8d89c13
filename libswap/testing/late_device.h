// A device for tests: memory of its own, which the host cannot use by mistake, copies that are
// real, and events that come late, in the order of one queue a direction. What a GPU would do
// wrong without a word stops the program here: a buffer of the host given to a kernel, a copy past
// the end, memory used after it was freed.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "ebb/libswap/device/device.h"
#include "ebb/libswap/sys/mutex.h"

namespace ebb::libswap {

class LateDevice : public Device {
 public:
  // Some pieces of work begin, or end, up to `delay_us` microseconds late, by a generator of this
  // seed.
  LateDevice(std::uint64_t seed, std::uint32_t delay_us);
  ~LateDevice() override;  // REQUIRES: all its memory was freed

  std::string name() const override { return "late"; }
  Result<DeviceMemory> allocate(std::uint64_t bytes) override;
  Event copy(const Buffer& from, const Buffer& to, const Event& after) override;

  // Work of the compute queue, in order, behind `after`; the event passes some time behind it.
  Event compute(std::span<const Event> after, std::function<void()> work);
  // The bytes of a buffer of this device, for such work. Stops the program for any other.
  std::span<std::byte> open(const Buffer& buffer) const;

  std::uint64_t copied_up() const;      // bytes, from the host
  std::uint64_t copied_down() const;    // bytes, to the host
  std::uint64_t copied_inside() const;  // bytes, or from another device
  std::uint64_t most_bytes() const;     // ever allocated at once

 private:
  class Queue;
  struct Count {
    std::uint64_t up = 0, down = 0, inside = 0, now = 0, most = 0;
  };
  void forget(std::uint64_t key, std::uint64_t bytes);

  mutable Mutex mutex_;
  Count count_ EBB_GUARDED_BY(mutex_);
  std::map<std::uint64_t, std::uint64_t> allocated_ EBB_GUARDED_BY(mutex_);  // key -> bytes
  std::unique_ptr<Queue> up_, down_, compute_;
};

}  // namespace ebb::libswap
