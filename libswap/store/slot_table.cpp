#include "ebb/libswap/store/slot_table.h"

#include <bit>
#include <utility>

#include "ebb/formats/core/check.h"

namespace ebb::libswap {
namespace {

constexpr std::uint8_t kNone = 0xff;

std::uint32_t bit(std::uint32_t slot) { return 1u << slot; }

}  // namespace

SlotTable::SlotTable(std::uint64_t tiles, std::uint32_t slots)
    : slots_(slots), newest_(tiles), placed_(tiles, kNone) {}

void SlotTable::restore(std::uint64_t generation, std::uint32_t region,
                        std::vector<TileVersion> tiles) {
  EBB_CHECK(tiles.size() == newest_.size());
  newest_ = tiles;
  pending_ = Cut{generation, 0, region, std::move(tiles)};
  commit();
}

std::uint32_t SlotTable::pinned(std::uint64_t tile) const {
  std::uint32_t mask = 0;
  for (const auto& [number, pin] : pins_) mask |= bit(pin.generation->slots[tile]);
  return mask;
}

std::uint32_t SlotTable::held(std::uint64_t tile, std::uint64_t step) const {
  std::uint32_t mask = pinned(tile);
  if (committed_) mask |= bit(committed_->slots[tile]);
  // Up to its step a write belongs to the cut and may replace what the cut had.
  if (pending_ && step > pending_->step) mask |= bit(pending_->tiles[tile].slot);
  return mask;
}

std::optional<std::uint8_t> SlotTable::place(std::uint64_t tile, std::uint64_t step) {
  const std::uint32_t mask = held(tile, step);
  const auto take = [&](std::uint8_t slot) {
    placed_[tile] = slot;
    return slot;
  };
  if (placed_[tile] != kNone && (mask & bit(placed_[tile])) == 0) return placed_[tile];
  if ((mask & bit(newest_[tile].slot)) == 0) return take(newest_[tile].slot);
  for (std::uint32_t slot = 0; slot < slots_; ++slot)
    if ((mask & bit(slot)) == 0) return take(static_cast<std::uint8_t>(slot));
  return std::nullopt;
}

void SlotTable::wrote(std::uint64_t tile, std::uint64_t step, TileVersion version) {
  EBB_CHECK((held(tile, step) & bit(version.slot)) == 0);
  placed_[tile] = kNone;
  if (pending_ && step <= pending_->step) pending_->tiles[tile] = version;
  if (!newest_[tile].written || newest_[tile].step <= step) newest_[tile] = std::move(version);
}

std::optional<std::uint32_t> SlotTable::free_region() const {
  std::uint32_t used = 0;
  if (committed_) used |= 1u << committed_->region;
  for (const auto& [number, pin] : pins_) used |= 1u << pin.generation->region;
  for (std::uint32_t region = 0; region <= slots_; ++region)
    if ((used & (1u << region)) == 0) return region;
  return std::nullopt;
}

// Once committed, the new generation takes one slot beside the pinned ones; one must be left.
bool SlotTable::can_cut() const {
  if (pending_ || !free_region()) return false;
  if (pins_.empty()) return true;
  for (std::uint64_t tile = 0; tile < newest_.size(); ++tile)
    if (static_cast<std::uint32_t>(std::popcount(pinned(tile))) + 2 > slots_) return false;
  return true;
}

bool SlotTable::can_commit() const {
  EBB_CHECK(pending_.has_value());
  for (std::uint64_t tile = 0; tile < newest_.size(); ++tile) {
    const std::uint32_t used = pinned(tile) | bit(pending_->tiles[tile].slot);
    if (static_cast<std::uint32_t>(std::popcount(used)) + 1 > slots_) return false;
  }
  return true;
}

// A pending cut may still put a tile into one more slot than the committed generation has it in.
bool SlotTable::room_to_sweep() const {
  const std::uint32_t needed = pending_ ? 2 : 1;
  for (std::uint64_t tile = 0; tile < newest_.size(); ++tile) {
    const std::uint32_t committed = committed_ ? bit(committed_->slots[tile]) : 0;
    const auto used = static_cast<std::uint32_t>(std::popcount(pinned(tile) | committed));
    if (used + needed > slots_) return false;
  }
  return true;
}

void SlotTable::cut(std::uint64_t generation, std::uint64_t step) {
  EBB_CHECK(can_cut());
  pending_ = Cut{generation, step, *free_region(), newest_};
}

void SlotTable::commit() {
  EBB_CHECK(pending_.has_value());
  auto committed = std::make_shared<Generation>();
  committed->number = pending_->generation;
  committed->region = pending_->region;
  committed->slots.reserve(pending_->tiles.size());
  for (const TileVersion& tile : pending_->tiles) committed->slots.push_back(tile.slot);
  committed_ = std::move(committed);
  pending_.reset();
}

bool SlotTable::pin(std::uint64_t generation) {
  if (const auto found = pins_.find(generation); found != pins_.end()) {
    ++found->second.count;
    return true;
  }
  if (committed() != generation || generation == 0) return false;
  pins_.emplace(generation, Pin{committed_, 1});
  return true;
}

void SlotTable::unpin(std::uint64_t generation) {
  const auto found = pins_.find(generation);
  if (found == pins_.end()) return;
  if (--found->second.count == 0) pins_.erase(found);
}

}  // namespace ebb::libswap
