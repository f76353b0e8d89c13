// Names numbered in the order they come: a hash table in two pieces of memory, for indexes that
// have tens of thousands of names. Names that were made to collide cost what a tree costs.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

namespace ebb::formats {

// Borrows the names. Not for two threads at once unless both only look.
class NameTable {
 public:
  struct Inserted {
    std::uint32_t number = 0;
    bool fresh = false;
  };
  // A name that is there keeps its number, a new one gets the next. REQUIRES: fewer than 2^31.
  Inserted insert(std::string_view name);
  std::optional<std::uint32_t> find(std::string_view name) const;
  void reserve(std::size_t names);
  std::size_t size() const { return names_.size(); }

 private:
  struct Slot {
    std::uint32_t hash = 0;
    std::uint32_t next = 0;  // the number and one; 0: free
  };
  // Its own, or a free one; none where all near its place are taken.
  std::optional<std::size_t> slot_of(std::string_view name, std::uint32_t hash) const;
  void put(std::optional<std::size_t> at, const Slot& slot);
  void spread(std::size_t slots);

  std::vector<std::string_view> names_;
  std::vector<Slot> slots_;                            // a power of two, at most half of them taken
  std::map<std::string_view, std::uint32_t> crowded_;  // those that found no slot
};

// Keys of one object; they must outlive this. Most objects have three or four: those are not worth
// a hash table.
class SeenKeys {
 public:
  bool insert(std::string_view key) {  // false: it was there
    if (many_.size() != 0) return many_.insert(key).fresh;
    const auto end = few_.begin() + count_;
    if (std::find(few_.begin(), end, key) != end) return false;
    few_[count_++] = key;
    if (count_ == few_.size())
      for (const std::string_view one : few_) many_.insert(one);
    return true;
  }

 private:
  std::array<std::string_view, 16> few_;
  std::uint32_t count_ = 0;
  NameTable many_;
};

}  // namespace ebb::formats
