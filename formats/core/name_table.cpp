#include "formats/core/name_table.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "formats/core/check.h"

namespace formats {
namespace {

constexpr std::size_t kFewest = 16;

std::uint32_t hash_of(std::string_view name) {
  return static_cast<std::uint32_t>(std::hash<std::string_view>()(name));
}

}  // namespace

std::size_t NameTable::slot_of(std::string_view name, std::uint32_t hash) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t at = hash & mask;
  while (slots_[at].next != 0 && (slots_[at].hash != hash || names_[slots_[at].next - 1] != name))
    at = (at + 1) & mask;
  return at;
}

NameTable::Inserted NameTable::insert(std::string_view name) {
  if (2 * names_.size() >= slots_.size()) spread(std::max(kFewest, 2 * slots_.size()));
  const std::uint32_t hash = hash_of(name);
  Slot& slot = slots_[slot_of(name, hash)];
  if (slot.next != 0) return {slot.next - 1, false};
  names_.push_back(name);
  slot = {hash, static_cast<std::uint32_t>(names_.size())};
  return {slot.next - 1, true};
}

std::optional<std::uint32_t> NameTable::find(std::string_view name) const {
  if (slots_.empty()) return std::nullopt;
  const Slot& slot = slots_[slot_of(name, hash_of(name))];
  return slot.next == 0 ? std::nullopt : std::optional(slot.next - 1);
}

void NameTable::reserve(std::size_t names) {
  names_.reserve(names);
  const std::size_t slots = std::max(kFewest, std::bit_ceil(2 * names + 1));
  if (slots > slots_.size()) spread(slots);
}

void NameTable::spread(std::size_t slots) {
  CHECK(names_.size() < (std::uint32_t{1} << 31));
  std::vector<Slot> old(slots);
  old.swap(slots_);
  const std::size_t mask = slots - 1;
  for (const Slot& slot : old) {
    if (slot.next == 0) continue;
    std::size_t at = slot.hash & mask;
    while (slots_[at].next != 0) at = (at + 1) & mask;
    slots_[at] = slot;
  }
}

}  // namespace formats
