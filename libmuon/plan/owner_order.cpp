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

void ItemPacker::add(std::uint32_t param, FlatRange range, std::uint64_t moments, Out out) {
  const std::uint64_t takes = formats::align_up(range.count, room_.block);
  if (items_.empty() || out_ != out || elems_ + takes > room_.elems ||
      moments_ + moments > room_.moments) {
    items_.emplace_back();
    elems_ = moments_ = 0;
  }
  out_ = out;
  elems_ += takes;
  moments_ += moments;
  Item& item = items_.back();
  item.parts.push_back({param, range, item.elems});
  item.elems += range.count;
}

OwnerOrder::OwnerOrder(std::span<const Item> items, std::uint64_t most_room)
    : momentum_(items.size()), masters_(items.size()) {
  std::uint64_t largest = 0;
  for (const Item& item : items) largest = std::max(largest, item.elems);
  const bool two = items.size() > 1 && 2 * largest <= most_room;
  room_ = two ? 2 * largest : largest;
  const auto place = [&](std::vector<std::uint64_t>& places, std::size_t item) {
    places[item] = std::exchange(length_, length_ + items[item].elems);
  };
  for (std::size_t item = 0; item < items.size(); ++item) {
    const bool beside = item > 0 && items[item - 1].elems + items[item].elems <= room_;
    if (item > 0 && !beside) place(masters_, item - 1);
    place(momentum_, item);
    if (beside) place(masters_, item - 1);
    updates_.push_back(item % 2 == 0 ? 0 : room_ - items[item].elems);
  }
  if (!items.empty()) place(masters_, items.size() - 1);
}

}  // namespace ebb::libmuon
