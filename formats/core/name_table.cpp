#include "ebb/formats/core/name_table.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "ebb/formats/core/check.h"

namespace ebb::formats {
namespace {

constexpr std::size_t kFewest = 16;
constexpr std::size_t kMostSteps = 64;  // away from where the hash says; chance needs some ten

std::uint32_t hash_of(std::string_view name) {
  return static_cast<std::uint32_t>(std::hash<std::string_view>()(name));
}

}  // namespace

std::optional<std::size_t> NameTable::slot_of(std::string_view name, std::uint32_t hash) const {
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t step = 0; step < kMostSteps; ++step) {
    const std::size_t at = (hash + step) & mask;
    const Slot& slot = slots_[at];
    if (slot.next == 0 || (slot.hash == hash && names_[slot.next - 1] == name)) return at;
  }
  return std::nullopt;
}

NameTable::Inserted NameTable::insert(std::string_view name) {
  if (2 * names_.size() >= slots_.size()) spread(std::max(kFewest, 2 * slots_.size()));
  const std::uint32_t hash = hash_of(name);
  const std::optional<std::size_t> at = slot_of(name, hash);
  if (at && slots_[*at].next != 0) return {slots_[*at].next - 1, false};
  const auto number = static_cast<std::uint32_t>(names_.size());
  if (const auto known = crowded_.find(name); known != crowded_.end())
    return {known->second, false};
  names_.push_back(name);
  put(at, {hash, number + 1});
  return {number, true};
}

std::optional<std::uint32_t> NameTable::find(std::string_view name) const {
  if (slots_.empty()) return std::nullopt;
  const std::optional<std::size_t> at = slot_of(name, hash_of(name));
  if (at && slots_[*at].next != 0) return slots_[*at].next - 1;
  const auto known = crowded_.find(name);
  return known == crowded_.end() ? std::nullopt : std::optional(known->second);
}

void NameTable::reserve(std::size_t names) {
  names_.reserve(names);
  const std::size_t slots = std::max(kFewest, std::bit_ceil(2 * names + 1));
  if (slots > slots_.size()) spread(slots);
}

void NameTable::spread(std::size_t slots) {
  EBB_CHECK(names_.size() < (std::uint32_t{1} << 31));
  std::vector<Slot> old(slots);
  old.swap(slots_);
  for (const Slot& slot : old)
    if (slot.next != 0) put(slot_of(names_[slot.next - 1], slot.hash), slot);
}

void NameTable::put(std::optional<std::size_t> at, const Slot& slot) {
  if (at)
    slots_[*at] = slot;
  else
    crowded_.emplace(names_[slot.next - 1], slot.next - 1);
}

}  // namespace ebb::formats
