// What a tree of files keeps for its readers: open descriptors and decoded items. Thread-safe.
#pragma once

#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "ebb/formats/core/byte_source.h"
#include "ebb/libswap/sys/mutex.h"
#include "ebb/libswap/sys/unique.h"

namespace ebb::libswap {

// The descriptors used last, up to a number. One that is dropped closes when the last reader is
// through with it.
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

// Items that can only be decoded whole, kept for those who read them in parts, by turns or at once.
// Keeps the latest items that fit `limit` bytes together, or one that is larger. Thread-safe; who
// asks for an item that is being made waits for it, others do not.
class DecodedItems {
 public:
  using Item = formats::SourceTree::Decoded;
  explicit DecodedItems(std::uint64_t limit) : limit_(limit) {}

  // An error of `make` is kept for nobody.
  Result<Item> get(const std::string& key, std::uint64_t bytes,
                   const std::function<Result<Item>()>& make);

 private:
  struct Slot {
    Mutex making;
    Item item EBB_GUARDED_BY(making);
  };
  struct Kept {
    std::string key;
    std::uint64_t bytes = 0;
    std::shared_ptr<Slot> slot;
  };
  std::shared_ptr<Slot> slot_of(const std::string& key, std::uint64_t bytes);

  const std::uint64_t limit_;
  Mutex mutex_;
  std::list<Kept> kept_ EBB_GUARDED_BY(mutex_);  // the latest first
  std::unordered_map<std::string_view, std::list<Kept>::iterator> by_key_ EBB_GUARDED_BY(mutex_);
  std::uint64_t kept_bytes_ EBB_GUARDED_BY(mutex_) = 0;
};

}  // namespace ebb::libswap
