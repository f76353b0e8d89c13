// Lift: what a visit works on, in the memory of the device that computes. Where that is the host,
// buffers are used where they lie and nothing is copied. Elsewhere each visit has one of a ring of
// slots: its tile and its operands are copied up into it, and down behind the work; the next visits
// do not wait for that. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ebb/libswap/device/device.h"
#include "ebb/libswap/pool.h"

namespace ebb::libswap {

class Lift {
 public:
  // Visits under way at once: one is copied up, one computed, one copied down.
  static constexpr std::uint64_t kSlots = 3;
  // Of a tile, and of how many elements it holds at most.
  struct Size {
    std::uint64_t bytes = 0, elems = 0;
  };
  // Of the slots: a tile, what is read beside it, what is handed out.
  static std::uint64_t device_bytes(const Size& tile);

  // `device`: null is the host. It and the pool are borrowed.
  static Result<std::unique_ptr<Lift>> open(Device* device, Pool& pool, const Size& tile);
  ~Lift();  // waits for its copies
  Lift(const Lift&) = delete;
  Lift& operator=(const Lift&) = delete;

  class Visit {
   public:
    // The buffer if it lies on the device (or is the device's to be), else a copy of it there, as
    // soon as ready() has passed. REQUIRES: at most a slot's room of one visit.
    Buffer up(const Buffer& from);
    // As up(), without the content: what the work writes, behind ready(), and down() brings to
    // `to`.
    Buffer room_for(const Buffer& to);
    // What the work must wait for.
    std::span<const Event> ready() const { return ready_; }
    void also_behind(const Event& event) { ready_.push_back(event); }
    // Behind `done`: copies to `to`, unless `from` is that. The event passes when it is there.
    Event down(const Buffer& from, const Buffer& to, const Event& done);
    // Ends the visit: nobody uses its slot when `last` has passed, on which all of it waits.
    void end(const Event& last);

   private:
    friend class Lift;
    Visit(Lift& lift, std::size_t slot) : lift_(lift), slot_(slot) {}
    Lift& lift_;
    std::size_t slot_;
    std::uint64_t used_ = 0;  // bytes of the slot
    std::vector<Event> ready_;
  };
  Visit begin();

 private:
  Lift(Device* device, Pool& pool) : device_(device), pool_(pool) {}

  Device* const device_;
  Pool& pool_;
  DeviceMemory memory_;
  std::uint64_t slot_bytes_ = 0;
  std::vector<Event> busy_;  // by slot: passes when its last visit is over
  std::size_t next_ = 0;
};

}  // namespace ebb::libswap
