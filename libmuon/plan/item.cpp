#include "ebb/libmuon/plan/item.h"

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

}  // namespace ebb::libmuon
