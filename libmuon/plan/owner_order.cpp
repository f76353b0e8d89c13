#include "ebb/libmuon/plan/owner_order.h"

#include <algorithm>
#include <utility>

namespace ebb::libmuon {

void ItemPacker::add(std::uint32_t param, FlatRange range) {
  if (items_.empty() || items_.back().elems + range.count > tile_elems_) items_.emplace_back();
  Item& item = items_.back();
  item.parts.push_back({param, range, item.elems});
  item.elems += range.count;
}

OwnerOrder::OwnerOrder(std::vector<Item> items, std::uint64_t most_room)
    : items_(std::move(items)), momentum_(items_.size()), masters_(items_.size()) {
  std::uint64_t largest = 0;
  for (const Item& item : items_) largest = std::max(largest, item.elems);
  const bool two = items_.size() > 1 && 2 * largest <= most_room;
  room_ = two ? 2 * largest : largest;
  const auto place = [this](std::vector<std::uint64_t>& places, std::size_t item) {
    places[item] = std::exchange(length_, length_ + items_[item].elems);
  };
  for (std::size_t item = 0; item < items_.size(); ++item) {
    const bool beside = item > 0 && items_[item - 1].elems + items_[item].elems <= room_;
    if (item > 0 && !beside) place(masters_, item - 1);
    place(momentum_, item);
    if (beside) place(masters_, item - 1);
  }
  if (!items_.empty()) place(masters_, items_.size() - 1);
}

}  // namespace ebb::libmuon
