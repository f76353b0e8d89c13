#include "ebb/libswap/tree/decoded_items.h"

#include "ebb/libswap/sys/mutex.h"

namespace ebb::libswap {

std::shared_ptr<DecodedItems::Slot> DecodedItems::slot_of(const std::string& key,
                                                          std::uint64_t bytes) {
  const MutexLock lock(mutex_);
  if (const auto known = by_key_.find(key); known != by_key_.end()) {
    kept_.splice(kept_.begin(), kept_, known->second);
    return kept_.front().slot;
  }
  while (!kept_.empty() && (bytes > limit_ || kept_bytes_ > limit_ - bytes)) {
    kept_bytes_ -= kept_.back().bytes;
    by_key_.erase(kept_.back().key);
    kept_.pop_back();
  }
  kept_.push_front({key, bytes, std::make_shared<Slot>()});
  by_key_.emplace(kept_.front().key, kept_.begin());
  kept_bytes_ += bytes;
  return kept_.front().slot;
}

Result<DecodedItems::Item> DecodedItems::get(const std::string& key, std::uint64_t bytes,
                                             const std::function<Result<Item>()>& make) {
  const std::shared_ptr<Slot> slot = slot_of(key, bytes);
  const MutexLock lock(slot->making);
  if (slot->item == nullptr) {
    EBB_TRY_ASSIGN(slot->item, make());
  }
  return slot->item;
}

}  // namespace ebb::libswap
