#include "ebb/libmuon/plan/chunks.h"

#include <algorithm>
#include <map>
#include <utility>

namespace ebb::libmuon {

using formats::div_ceil;

namespace {

// A table of more would not fit a machine: their chunks are larger than was asked for.
constexpr std::uint64_t kMostChunks = std::uint64_t{1} << 22;

}  // namespace

// One owner's order, cut into chunks of equal length.
struct Chunks::Line {
  std::vector<Item> items;
  OwnerOrder order;
  std::uint64_t per_chunk = 1;

  std::uint64_t chunk_at(std::uint64_t place) const { return place / per_chunk; }
};

namespace {

bool at_owner(const StatePlan::OwnRun& run, std::uint32_t param, const ModelLayout& trainer) {
  return !trainer.in_parts() && trainer.holds({param, run.range}, run.owner);
}

// A parameter's matrices of one owner, one behind the other, travel as one range.
void append(const StatePlan& plan, std::vector<Transit>& transits, const Transit& next) {
  Transit* const last = transits.empty() ? nullptr : &transits.back();
  if (last != nullptr && last->param == next.param &&
      last->range.first + last->range.count == next.range.first &&
      plan.run_of(next.param, last->range.first).range ==
          plan.run_of(next.param, next.range.first).range)
    last->range.count += next.range.count;
  else
    transits.push_back(next);
}

// What of a leg's elements lies in tiles that are visited.
std::vector<FlatRange> needed(const Item& item, const Leg& leg, FlatRange elems,
                              std::uint64_t tile_elems) {
  if (!item.streaming.wide()) return {elems};
  std::vector<FlatRange> all;
  const std::uint64_t end = elems.first + elems.count;
  for (std::uint64_t first = elems.first; first < end; first += tile_elems) {
    const FlatRange tile = {first, std::min(tile_elems, end - first)};
    if (!item.streaming.needs(leg.action, leg.pass, tile, item.elems)) continue;
    if (!all.empty() && all.back().first + all.back().count == first)
      all.back().count += tile.count;
    else
      all.push_back(tile);
  }
  return all;
}

// What of a part is not among them yet; only of what is streamed can there be any.
std::vector<FlatRange> not_in(std::span<const Transit> transits, const ItemPart& part,
                              const Streaming& streaming) {
  std::vector<FlatRange> missing = {part.range};
  if (!streaming) return missing;
  for (const Transit& there : transits) {
    if (there.param != part.param) continue;
    std::vector<FlatRange> rest;
    for (const FlatRange& range : missing) {
      const FlatRange both = formats::overlap(range, there.range);
      if (both.count == 0) {
        rest.push_back(range);
        continue;
      }
      const std::uint64_t end = range.first + range.count, behind = both.first + both.count;
      if (both.first > range.first) rest.push_back({range.first, both.first - range.first});
      if (end > behind) rest.push_back({behind, end - behind});
    }
    missing = std::move(rest);
  }
  return missing;
}

}  // namespace

Chunks::Chunks(const StatePlan& plan, std::uint64_t chunk_bytes) {
  if (plan.placement() == Placement::shard)
    take_turns(plan);
  else
    cut_lines(plan, chunk_bytes);
  bring_adam(plan);
}

void Chunks::bring_adam(const StatePlan& plan) {
  for (Chunk& chunk : chunks_) chunk.matrices = matrices_in(plan, chunk.weights).size();
  const auto matrices = matrices_in(plan, chunks_.front().weights);
  bound_first_.assign(matrices.begin(), matrices.end());
  const Transits adam = adam_ranges(plan);
  for (Transits* const first : {&chunks_.front().gradients, &bound_first_})
    first->insert(first->end(), adam.begin(), adam.end());
}

void Chunks::take_turns(const StatePlan& plan) {
  const ShardOrder& order = *plan.shard_order();
  chunks_.resize(order.turns());
  for (std::size_t chunk = 0; chunk < order.chunks(); ++chunk) {
    const Transits matrices(order.chunk(chunk).begin(), order.chunk(chunk).end());
    Chunk& prepares = chunks_[2 * chunk];
    Chunk& finishes = chunks_[2 * chunk + ShardOrder::kTurnsBetween];
    prepares.gradients = prepares.updates = finishes.results = finishes.weights = matrices;
  }
  cut_adam(plan.adam_line());
  for (const Visit& visit : plan.schedule()) ++chunks_[plan.turn(visit)].visits_end;
  for (std::size_t turn = 1; turn < count(); ++turn)
    chunks_[turn].visits_end += chunks_[turn - 1].visits_end;
}

void Chunks::cut_lines(const StatePlan& plan, std::uint64_t chunk_bytes) {
  std::map<std::uint32_t, ItemPacker> packers;
  bool staged_somewhere = false;
  std::uint32_t widest = 0;  // bytes of an element that travels
  for (std::uint32_t param = 0; param < plan.params(); ++param) {
    if (!plan.muon(param)) continue;
    StatePlan::OwnRun run;
    for (const ItemRange& whole : plan.wholes(param)) {
      const FlatRange& range = whole.range;
      if (range.first == run.range.first + run.range.count) {
        run = plan.run_of(param, range.first);
        staged_somewhere = staged_somewhere || !at_owner(run, param, plan.gradients()) ||
                           !at_owner(run, param, plan.weights());
      }
      packers.try_emplace(index_of(run.owner), plan.tile_size().room())
          .first->second.add(param, whole, plan.out(param));
    }
    const std::uint32_t ways = plan.columns().bound_masters() ? 2 : 1;  // weights come, too
    widest = std::max({widest, bytes_of(plan.gradients().staged_dtype(param)),
                       ways * bytes_of(plan.weights().dtype(param))});
  }
  std::map<std::uint32_t, Line> lines;
  std::uint64_t longest = 0;
  for (auto& [owner, packer] : packers) {
    std::vector<Item> items = std::move(packer).items();
    OwnerOrder order(items, plan.update_bytes() / sizeof(float), plan.tile_size().elems());
    longest = std::max(longest, order.length() * widest);
    lines.emplace(owner, Line{std::move(items), std::move(order)});
  }
  const std::uint64_t chunks =
      staged_somewhere ? std::clamp<std::uint64_t>(div_ceil(longest, chunk_bytes), 1, kMostChunks)
                       : 1;
  chunks_.resize(chunks);
  for (auto& [owner, line] : lines) {
    line.per_chunk = std::max<std::uint64_t>(1, div_ceil(line.order.length(), chunks));
    for (std::size_t item = 0; item < line.items.size(); ++item)
      for (const Leg& leg : line.order.legs(line.items[item], item))
        cut_leg(plan, line, line.items[item], leg);
  }
  cut_adam(plan.adam_line());
  const auto own = lines.find(index_of(plan.rank()));
  cut_schedule(plan, own == lines.end() ? nullptr : &own->second);
  drop_idle();
}

// A chunk smaller than a tile may have nothing to bring: its visits are the next one's.
void Chunks::drop_idle() {
  const std::size_t visits = chunks_.back().visits_end;
  std::erase_if(
      chunks_, [](const Chunk& chunk) { return chunk.gradients.empty() && chunk.weights.empty(); });
  if (chunks_.empty()) chunks_.emplace_back();
  chunks_.back().visits_end = visits;
}

// Tiles belong to the chunk in which they begin. What several passes need comes once to each chunk.
void Chunks::cut_leg(const StatePlan& plan, const Line& line, const Item& item, const Leg& leg) {
  const bool brings = leg.action != Action::finish;
  if (!brings && !item.streaming.hands_out(leg.pass)) return;
  const std::uint64_t tile_elems = plan.capacity(brings ? TileKind::momentum : TileKind::masters);
  const std::uint64_t all = leg.elems.first + leg.elems.count;
  std::uint64_t first = leg.elems.first;
  while (first < all) {
    const std::uint64_t chunk = line.chunk_at(leg.place + first - leg.elems.first);
    const std::uint64_t border = (chunk + 1) * line.per_chunk - leg.place + leg.elems.first;
    const std::uint64_t end = std::min(all, formats::align_up(border, tile_elems));
    Transits& transits = brings ? chunks_[chunk].gradients : chunks_[chunk].weights;
    for (const FlatRange& some : needed(item, leg, {first, end - first}, tile_elems))
      for (const ItemPart& part : parts_of(item, some))
        for (const FlatRange& missing : not_in(transits, part, item.streaming))
          append(plan, transits, {part.param, missing});
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
    chunks_[chunk].weights.push_back(piece.part);
  }
}

// AdamW tiles belong to the chunk of the matrix' tile before them; without any matrix, to that of
// their place.
void Chunks::cut_schedule(const StatePlan& plan, const Line* own) {
  const std::vector<Visit>& schedule = plan.schedule();
  for (Chunk& one : chunks_) one.visits_end = schedule.size();
  std::uint64_t chunk = 0;
  for (std::size_t i = 0; i < schedule.size(); ++i) {
    std::uint64_t next = chunk;
    if (own == nullptr)
      next = plan.place(schedule[i]) * count() / plan.adam_line().length();
    else if (schedule[i].action != Action::local)
      next = own->chunk_at(plan.place(schedule[i]));
    for (; chunk < next; ++chunk) chunks_[chunk].visits_end = i;
  }
}

std::vector<Transit> adam_ranges(const StatePlan& plan) {
  std::vector<Transit> ranges;
  for (std::uint32_t param = 0; param < plan.params(); ++param)
    if (!plan.muon(param)) ranges.push_back({param, {0, plan.elems(param)}});
  return ranges;
}

std::span<const Transit> matrices_in(const StatePlan& plan, std::span<const Transit> transits) {
  const auto others = std::ranges::partition_point(
      transits, [&](const Transit& transit) { return plan.muon(transit.param); });
  return {transits.begin(), others};
}

std::vector<FlatRange> staged_parts(const StatePlan& plan, const ModelLayout& trainer,
                                    const Transit& transit) {
  const auto [param, range] = transit;
  if (plan.in_place(param, range.first, trainer)) return {};
  std::vector<FlatRange> parts;
  if (!plan.on_shards(param)) {
    if (plan.computes(param, range.first)) parts.push_back(range);
    return parts;
  }
  for (const FlatRange own : plan.own_ranges(param))
    if (const FlatRange part = formats::overlap(own, range); part.count > 0) parts.push_back(part);
  return parts;
}

std::uint64_t staged_elems(const StatePlan& plan, const ModelLayout& trainer,
                           std::span<const Transit> transits) {
  std::uint64_t elems = 0;
  for (const Transit& transit : transits)
    for (const FlatRange part : staged_parts(plan, trainer, transit)) elems += part.count;
  return elems;
}

std::size_t early_chunks(const StatePlan& plan, const Chunks& chunks, std::uint64_t bytes) {
  if (plan.placement() == Placement::shard) return 0;
  std::map<Rank, std::uint64_t> staged;  // bytes, by owner
  std::size_t early = 0;
  for (std::size_t piece = 0; piece < chunks.count(); ++piece) {
    bool travels = false;
    for (const Transit& transit : matrices_in(plan, chunks.gradients(chunks.count() - 1 - piece))) {
      const StatePlan::OwnRun run = plan.run_of(transit.param, transit.range.first);
      if (at_owner(run, transit.param, plan.gradients())) continue;
      std::uint64_t& taken = staged[run.owner];
      taken += staged_bytes(plan.gradients().staged_dtype(transit.param), transit.range.count);
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
    for (const FlatRange part : staged_parts(plan, trainer, transit))
      bytes += staged_bytes(trainer.staged_dtype(transit.param), part.count);
  return bytes;
}

}  // namespace ebb::libmuon
