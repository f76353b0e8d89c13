// DescriptorCache: the descriptors used last, up to a number. One that is dropped closes when the
// last reader is through with it. Thread-safe.
#pragma once

#include <list>
#include <memory>
#include <unordered_map>

#include "ebb/libswap/sys/mutex.h"
#include "ebb/libswap/sys/unique.h"

namespace ebb::libswap {

class DescriptorCache {
 public:
  using Shared = std::shared_ptr<const Descriptor>;
  explicit DescriptorCache(std::size_t capacity) : capacity_(capacity) {}

  Shared find(const void* key);  // nullptr: not there
  Shared insert(const void* key, Descriptor descriptor);
  void forget(const void* key);

 private:
  struct Slot {
    const void* key;
    Shared descriptor;
  };
  std::size_t capacity_;
  Mutex mutex_;
  std::list<Slot> slots_ EBB_GUARDED_BY(mutex_);  // used last first
  std::unordered_map<const void*, std::list<Slot>::iterator> places_ EBB_GUARDED_BY(mutex_);
};

}  // namespace ebb::libswap
