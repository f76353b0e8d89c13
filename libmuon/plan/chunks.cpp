#include "ebb/libmuon/plan/chunks.h"

#include <algorithm>
#include <map>

namespace ebb::libmuon {

using formats::div_ceil;

// One owner's order, cut into chunks of equal length.
struct Chunks::Line {
  std::vector<Item> items;
  OwnerOrder order;
  std::uint64_t per_chunk = 1;

  std::uint64_t chunk_at(std::uint64_t place) const { return place / per_chunk; }
};

namespace {

bool holds_whole(const ModelLayout& trainer, std::uint32_t param, std::uint32_t owner) {
  return !trainer.in_parts() && trainer.held(param, Rank{owner}).count == trainer.elems(param);
}

// A parameter's matrices, one behind the other, travel as one range.
void append(std::vector<Transit>& transits, const Transit& next) {
  Transit* const last = transits.empty() ? nullptr : &transits.back();
  if (last != nullptr && last->param == next.param &&
      last->range.first + last->range.count == next.range.first)
    last->range.count += next.range.count;
  else
    transits.push_back(next);
}

}  // namespace

Chunks::Chunks(const StatePlan& plan, std::uint64_t chunk_bytes) {
  std::map<std::uint32_t, ItemPacker> packers;
  bool staged_somewhere = false;
  std::uint32_t widest = 0;  // bytes of an element that travels
  const std::vector<std::uint32_t>& owners = plan.owners().spec().owners;
  for (std::uint32_t param = 0; param < owners.size(); ++param) {
    if (!plan.muon(param)) continue;
    ItemPacker& packer = packers.try_emplace(owners[param], plan.item_elems()).first->second;
    for (const FlatRange whole : plan.wholes(param)) packer.add(param, whole, plan.out(param));
    widest = std::max({widest, bytes_of(plan.gradients().staged_dtype(param)),
                       bytes_of(plan.weights().dtype(param))});
    staged_somewhere = staged_somewhere || !holds_whole(plan.gradients(), param, owners[param]) ||
                       !holds_whole(plan.weights(), param, owners[param]);
  }
  std::map<std::uint32_t, Line> lines;
  std::uint64_t longest = 0;
  for (const auto& [owner, packer] : packers) {
    OwnerOrder order(packer.items(), plan.update_bytes() / sizeof(float));
    longest = std::max(longest, order.length() * widest);
    lines.emplace(owner, Line{packer.items(), std::move(order)});
  }
  const std::uint64_t chunks =
      staged_somewhere ? std::max<std::uint64_t>(1, div_ceil(longest, chunk_bytes)) : 1;
  chunks_.resize(chunks);
  for (auto& [owner, line] : lines) {
    line.per_chunk = std::max<std::uint64_t>(1, div_ceil(line.order.length(), chunks));
    for (std::size_t item = 0; item < line.items.size(); ++item) {
      cut_item(line, item, line.order.momentum(item), plan.capacity(Visit::prepare),
               &Chunk::gradients);
      cut_item(line, item, line.order.masters(item), plan.capacity(Visit::finish), &Chunk::weights);
    }
  }
  cut_adam(plan.adam_line());
  const auto own = lines.find(index_of(plan.rank()));
  cut_schedule(plan, own == lines.end() ? nullptr : &own->second);
  drop_idle();
}

// A chunk smaller than a tile may have nothing to bring: its visits are the next one's.
void Chunks::drop_idle() {
  const Chunk last = chunks_.back();
  std::erase_if(chunks_, [](const Chunk& chunk) {
    return chunk.gradients.empty() && chunk.weights.empty() && chunk.adam_weights.empty();
  });
  if (chunks_.empty()) chunks_.emplace_back();
  chunks_.back().visits_end = last.visits_end;
  chunks_.back().hand_outs_end = last.hand_outs_end;
}

// Tiles belong to the chunk in which they begin.
void Chunks::cut_item(const Line& line, std::size_t number, std::uint64_t place,
                      std::uint64_t tile_elems, Transits Chunk::* into) {
  const Item& item = line.items[number];
  std::uint64_t first = 0;
  while (first < item.elems) {
    const std::uint64_t chunk = line.chunk_at(place + first);
    const std::uint64_t border = (chunk + 1) * line.per_chunk - place;
    const std::uint64_t end = std::min(item.elems, formats::align_up(border, tile_elems));
    for (const ItemPart& part : parts_of(item, {first, end - first}))
      append(chunks_[chunk].*into, {part.param, part.range});
    first = end;
  }
}

// Visits of both lines keep step (StatePlan::order_visits): whoever has visited the matrices of
// chunks 0..c, which are at most their share of its line, has visited that share of AdamW's too.
void Chunks::cut_adam(const AdamLine& line) {
  const std::uint64_t share = line.length() / count();
  for (const AdamLine::Piece& piece : line.pieces()) {
    const std::size_t last = count() - 1;
    const std::size_t chunk = share == 0 ? last : std::min(last, (piece.end - 1) / share);
    chunks_[chunk].adam_weights.push_back(piece.part);
  }
}

// AdamW tiles belong to the chunk of the matrix' tile before them; without any matrix, to that of
// their place.
void Chunks::cut_schedule(const StatePlan& plan, const Line* own) {
  const std::vector<std::uint64_t>& schedule = plan.schedule();
  for (Chunk& one : chunks_) one.visits_end = schedule.size();
  for (const StatePlan::HandOut& hand_out : plan.hand_outs())
    for (std::size_t later = own->chunk_at(plan.place(hand_out.part)); later < count(); ++later)
      ++chunks_[later].hand_outs_end;
  std::uint64_t chunk = 0;
  for (std::size_t i = 0; i < schedule.size(); ++i) {
    const TileEntry& tile = plan.tiles()[schedule[i]];
    std::uint64_t next = chunk;
    if (own == nullptr)
      next = plan.place(tile) * count() / plan.adam_line().length();
    else if (tile.visit != Visit::local)
      next = own->chunk_at(plan.place(tile));
    for (; chunk < next; ++chunk) chunks_[chunk].visits_end = i;
  }
}

std::vector<Transit> adam_ranges(const StatePlan& plan) {
  std::vector<Transit> ranges;
  const std::vector<Shape>& shapes = plan.owners().tensors();
  for (std::uint32_t param = 0; param < shapes.size(); ++param)
    if (!plan.muon(param)) ranges.push_back({param, {0, formats::volume(shapes[param])}});
  return ranges;
}

FlatRange staged_part(const StatePlan& plan, const ModelLayout& trainer, const Transit& transit) {
  if (plan.in_place(transit.param, trainer)) return {};
  return formats::overlap(plan.own_range(transit.param), transit.range);
}

std::size_t early_chunks(const StatePlan& plan, const Chunks& chunks, std::uint64_t bytes) {
  const std::vector<std::uint32_t>& owners = plan.owners().spec().owners;
  std::map<std::uint32_t, std::uint64_t> staged;  // bytes, by owner
  std::size_t early = 0;
  for (std::size_t piece = 0; piece < chunks.count(); ++piece) {
    bool travels = false;
    for (const Transit& transit : chunks.gradients(chunks.count() - 1 - piece)) {
      const std::uint32_t owner = owners[transit.param];
      if (holds_whole(plan.gradients(), transit.param, owner)) continue;
      std::uint64_t& taken = staged[owner];
      taken += staged_bytes(plan.gradients().dtype(transit.param), transit.range.count);
      if (taken > bytes) return early;
      travels = true;
    }
    if (travels) early = piece + 1;
  }
  return early;
}

std::uint64_t staged_bytes(DType dtype, std::uint64_t elems) {
  return formats::align_up(elems * bytes_of(dtype), sizeof(float));
}

std::uint64_t staged_bytes(const StatePlan& plan, const ModelLayout& trainer,
                           std::span<const Transit> transits) {
  std::uint64_t bytes = 0;
  for (const Transit& transit : transits)
    bytes += staged_bytes(trainer.staged_dtype(transit.param),
                          staged_part(plan, trainer, transit).count);
  return bytes;
}

}  // namespace ebb::libmuon
