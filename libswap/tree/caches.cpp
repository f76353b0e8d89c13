#include "ebb/libswap/tree/caches.h"

namespace ebb::libswap {

DescriptorCache::Shared DescriptorCache::find(const void* key) {
  const MutexLock lock(mutex_);
  const auto found = places_.find(key);
  if (found == places_.end()) return nullptr;
  slots_.splice(slots_.begin(), slots_, found->second);
  return found->second->descriptor;
}

DescriptorCache::Shared DescriptorCache::insert(const void* key, Descriptor descriptor) {
  auto shared = std::make_shared<const Descriptor>(std::move(descriptor));
  const MutexLock lock(mutex_);
  // Two readers may have opened the same file at once: the first one's stays.
  const auto found = places_.find(key);
  if (found != places_.end()) return found->second->descriptor;
  if (slots_.size() >= capacity_) {
    places_.erase(slots_.back().key);
    slots_.pop_back();
  }
  slots_.push_front({key, shared});
  places_[key] = slots_.begin();
  return shared;
}

void DescriptorCache::forget(const void* key) {
  const MutexLock lock(mutex_);
  const auto found = places_.find(key);
  if (found == places_.end()) return;
  slots_.erase(found->second);
  places_.erase(found);
}

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
