#include "ebb/libswap/pager/lift.h"

#include "ebb/formats/core/units.h"

namespace ebb::libswap {
namespace {

constexpr std::uint64_t kAlign = 16;  // of what kernels are given

// A tile of ranges of one element each needs the most.
std::uint64_t slot_bytes(const Lift::Size& tile) { return tile.bytes + kAlign * tile.elems; }

}  // namespace

std::uint64_t Lift::device_bytes(const Size& tile) { return kSlots * slot_bytes(tile); }

Result<std::unique_ptr<Lift>> Lift::open(Device* device, Pool& pool, const Size& tile) {
  std::unique_ptr<Lift> lift(new Lift(device, pool));
  if (device == nullptr) return lift;
  lift->slot_bytes_ = slot_bytes(tile);
  lift->busy_.resize(kSlots);
  EBB_TRY_ASSIGN(lift->memory_, device->allocate(device_bytes(tile)));
  return lift;
}

Lift::~Lift() {
  for (const Event& busy : busy_) pool_.help_until(busy);
}

Lift::Visit Lift::begin() {
  if (device_ == nullptr) return {*this, 0};
  Visit visit(*this, next_);
  visit.ready_.push_back(busy_[next_]);
  next_ = (next_ + 1) % kSlots;
  return visit;
}

Buffer Lift::Visit::room_for(const Buffer& to) {
  if (to.empty() || to.device == lift_.device_) return to;
  const std::uint64_t first = formats::align_up(used_, kAlign);
  used_ = first + to.size();
  EBB_CHECK(used_ <= lift_.slot_bytes_);
  return lift_.memory_.buffer().sub(slot_ * lift_.slot_bytes_ + first, to.size()).as(to.dtype);
}

Buffer Lift::Visit::up(const Buffer& from) {
  const Buffer here = room_for(from);
  if (here.data != from.data) ready_.push_back(copy(from, here, lift_.busy_[slot_]));
  return here;
}

Event Lift::Visit::down(const Buffer& from, const Buffer& to, const Event& done) {
  return from.data == to.data ? done : copy(from, to, done);
}

void Lift::Visit::end(const Event& last) {
  if (lift_.device_ != nullptr) lift_.busy_[slot_] = last;
}

}  // namespace ebb::libswap
