#include "ebb/libmuon/plan/owner_order.h"

#include <algorithm>
#include <utility>

namespace ebb::libmuon {

std::vector<ItemPart> parts_of(const Item& item, FlatRange elems, std::size_t first_part) {
  std::vector<ItemPart> parts;
  for (const ItemPart& part : std::span(item.parts).subspan(first_part)) {
    if (part.item_first >= elems.first + elems.count) break;
    const FlatRange held = formats::overlap({part.item_first, part.range.count}, elems);
    if (held.count > 0)
      parts.push_back(
          {part.param, {part.range.first + held.first - part.item_first, held.count}, held.first});
  }
  return parts;
}

std::vector<ItemBatch> batches_of(const ModelSpec& model, const Item& item) {
  std::vector<ItemBatch> batches;
  for (const ItemPart& part : item.parts) {
    if (!is_muon(model, part.param)) return {};
    const ParamSpec& param = model.params[part.param];
    const FlatRange& held = part.range;
    for (const Block& block : blocks_of(muon_spec(model, part.param), param.shape)) {
      if (block.first < held.first || block.first >= held.first + held.count) continue;
      const std::uint64_t first = part.item_first + block.first - held.first;
      ItemBatch* const before = batches.empty() ? nullptr : &batches.back();
      const bool same = before != nullptr && model.params[before->param].group == param.group &&
                        before->matrix.alike(block) && block.runs == 1 &&
                        before->item_first + before->count * block.span() == first;
      if (same)
        ++before->count;
      else
        batches.push_back({part.param, block, 1, first});
    }
  }
  return batches;
}

void ItemPacker::add(std::uint32_t param, const ItemRange& whole, Out out) {
  const auto& [range, moments, streaming] = whole;
  const std::uint64_t takes = formats::align_up(range.count, room_.block);
  if (items_.empty() || out_ != out || elems_ + takes > room_.elems ||
      moments_ + moments > room_.moments || streaming || items_.back().streaming) {
    items_.emplace_back();
    elems_ = moments_ = 0;
  }
  out_ = out;
  elems_ += takes;
  moments_ += moments;
  Item& item = items_.back();
  item.streaming = streaming;
  item.parts.push_back({param, range, item.elems});
  item.elems += range.count;
}

OwnerOrder::OwnerOrder(std::span<const Item> items, std::uint64_t most_room, const TileElems& tiles)
    : momentum_(items.size()), masters_(items.size()) {
  std::uint64_t largest = 0;
  for (const Item& item : items) largest = std::max(largest, item.update_elems());
  const bool two = items.size() > 1 && 2 * largest <= most_room;
  room_ = two ? 2 * largest : largest;
  const auto place = [&](std::vector<std::uint64_t>& places, std::size_t item) {
    places[item] = std::exchange(length_, length_ + items[item].elems);
  };
  bool owed = false;  // masters of the item before
  for (std::size_t i = 0; i < items.size(); ++i) {
    const Item& item = items[i];
    updates_.push_back(i % 2 == 0 ? 0 : room_ - item.update_elems());
    const bool beside =
        owed && !item.streaming && items[i - 1].update_elems() + item.update_elems() <= room_;
    if (owed && !beside) place(masters_, i - 1);
    if (item.streaming) {
      const Leg& last = streamed_.emplace(i, legs_of(item.streaming, item.elems, tiles, length_))
                            .first->second.back();
      length_ = last.place + last.elems.count;
    } else {
      place(momentum_, i);
      if (beside) place(masters_, i - 1);
    }
    owed = !item.streaming;
  }
  if (owed) place(masters_, items.size() - 1);
}

std::vector<Leg> OwnerOrder::legs(const Item& item, std::size_t number) const {
  if (const auto found = streamed_.find(number); found != streamed_.end()) return found->second;
  return {{Action::prepare, 1, {0, item.elems}, momentum_[number]},
          {Action::finish, 1, {0, item.elems}, masters_[number]}};
}

std::uint64_t OwnerOrder::place(std::size_t item, Action action, std::uint32_t pass,
                                std::uint64_t element) const {
  const auto found = streamed_.find(item);
  if (found == streamed_.end())
    return (action == Action::prepare ? momentum_ : masters_)[item] + element;
  for (const Leg& leg : found->second)
    if (leg.action == action && leg.pass == pass && element >= leg.elems.first &&
        element < leg.elems.first + leg.elems.count)
      return leg.place + element - leg.elems.first;
  EBB_CHECK(false);
}

}  // namespace ebb::libmuon
