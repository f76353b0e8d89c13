#include "ebb/libswap/tree/decoded_items.h"

#include <algorithm>

namespace ebb::libswap {

std::shared_ptr<DecodedItems::Slot> DecodedItems::slot_of(const std::string& key,
                                                          std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(kept_, key, &Kept::key);
  if (found != kept_.end()) {
    kept_.splice(kept_.begin(), kept_, found);
    return kept_.front().slot;
  }
  std::uint64_t all = bytes;
  for (const Kept& kept : kept_) all += kept.bytes;
  for (; all > limit_ && !kept_.empty(); kept_.pop_back()) all -= kept_.back().bytes;
  kept_.push_front({key, bytes, std::make_shared<Slot>()});
  return kept_.front().slot;
}

formats::Result<DecodedItems::Item> DecodedItems::get(
    const std::string& key, std::uint64_t bytes,
    const std::function<formats::Result<Item>()>& make) {
  const std::shared_ptr<Slot> slot = slot_of(key, bytes);
  const std::lock_guard lock(slot->making);
  if (slot->item == nullptr) {
    EBB_TRY_ASSIGN(slot->item, make());
  }
  return slot->item;
}

}  // namespace ebb::libswap
