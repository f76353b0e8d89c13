#include "ebb/libswap/tree/descriptor_cache.h"

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

}  // namespace ebb::libswap
