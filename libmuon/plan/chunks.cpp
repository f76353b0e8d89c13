#include "ebb/libmuon/plan/chunks.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace ebb::libmuon {

using formats::div_ceil;

namespace {

// A table of more would not fit a machine: their chunks are larger than was asked for.
constexpr std::uint64_t kMostChunks = std::uint64_t{1} << 22;

}  // namespace

// What all ranks know of the order in which one of them visits its items; or, of what each visits a
// part of, all.
struct Chunks::Line {
  std::vector<Item> items;
  StepOrder order;
};

namespace {

bool at_owner(const StatePlan::OwnRun& run, std::uint32_t param, const ModelLayout& trainer) {
  return !trainer.in_parts() && trainer.holds({param, run.range}, run.owner);
}

// A parameter's matrices of one owner, or on shards, one behind the other, travel as one range.
void append(const StatePlan& plan, std::vector<Transit>& transits, const Transit& next) {
  Transit* const last = transits.empty() ? nullptr : &transits.back();
  if (last != nullptr && last->param == next.param &&
      last->range.first + last->range.count == next.range.first &&
      (plan.on_shards(next.param) || plan.run_of(next.param, last->range.first).range ==
                                         plan.run_of(next.param, next.range.first).range))
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

// So many that of the longest owner's line each stages at most that. One where no rank stages any.
std::uint64_t chunks_of(const StatePlan& plan, std::uint64_t longest, std::uint64_t chunk_bytes) {
  bool staged = false;
  std::uint32_t widest = 0;  // bytes of an element that travels
  for (std::uint32_t param = 0; param < plan.params(); ++param) {
    if (!plan.muon(param)) continue;
    for (std::uint64_t first = 0; first < plan.elems(param) && !staged;) {
      const StatePlan::OwnRun run = plan.run_of(param, first);
      staged = !at_owner(run, param, plan.gradients()) || !at_owner(run, param, plan.weights());
      first += run.range.count;
    }
    const std::uint32_t ways = plan.columns().bound_masters() ? 2 : 1;  // weights come, too
    widest = std::max({widest, bytes_of(plan.gradients().staged_dtype(param)),
                       ways * bytes_of(plan.weights().dtype(param))});
  }
  if (!staged) return 1;
  return std::clamp<std::uint64_t>(div_ceil(longest * widest, chunk_bytes), 1, kMostChunks);
}

}  // namespace

Chunks::Chunks(const StatePlan& plan, std::uint64_t chunk_bytes)
    : apart_(plan.placement() == Placement::shard) {
  const std::vector<Line> lines = lines_of(plan);
  std::uint64_t longest = 0;
  for (const Line& line : lines) longest = std::max(longest, line.order.length());
  chunks_.resize(apart_ ? plan.shard_order()->turns() : chunks_of(plan, longest, chunk_bytes));
  for (const Line& line : lines)
    for (std::size_t item = 0; item < line.items.size(); ++item)
      for (const Leg& leg : line.order.legs(line.items[item], item))
        cut_leg(plan, line, line.items[item], leg);
  cut_adam(plan.adam_line());
  cut_schedule(plan);
  if (!apart_) drop_idle();
  bring_adam(plan);
}

void Chunks::bring_adam(const StatePlan& plan) {
  for (Chunk& chunk : chunks_) {
    chunk.prepared = chunk.gradients.size();
    const auto matrices = matrices_in(plan, chunk.weights);
    chunk.finished = matrices.size();
    chunk.bound.assign(matrices.begin(), matrices.end());
  }
  const Transits adam = adam_ranges(plan);
  for (Transits* const first : {&chunks_.front().gradients, &chunks_.front().bound})
    first->insert(first->end(), adam.begin(), adam.end());
}

// Of all owners; where state lies on shards, one of all matrices, which lie in it whole.
std::vector<Chunks::Line> Chunks::lines_of(const StatePlan& plan) {
  std::vector<Line> lines;
  if (const ShardOrder* const turns = plan.shard_order(); turns != nullptr) {
    std::vector<Item> items(turns->bundles());
    std::vector<std::size_t> bundles(items.size());
    std::iota(bundles.begin(), bundles.end(), std::size_t{0});
    for (const std::size_t bundle : bundles)
      for (const Transit& matrix : turns->bundle(bundle)) {
        items[bundle].parts.push_back({matrix.param, matrix.range, items[bundle].elems});
        items[bundle].elems += matrix.range.count;
      }
    StepOrder order = turns->step_order(items, bundles);
    lines.push_back({std::move(items), std::move(order)});
    return lines;
  }
  std::map<Rank, ItemPacker> packers;
  for (std::uint32_t param = 0; param < plan.params(); ++param) {
    StatePlan::OwnRun run;
    for (const ItemRange& whole : plan.matrix_runs(param)) {
      if (whole.range.first == run.range.first + run.range.count)
        run = plan.run_of(param, whole.range.first);
      packers.try_emplace(run.owner, plan.tile_size().room())
          .first->second.add(param, whole, plan.out(param));
    }
  }
  for (auto& [owner, packer] : packers) {
    std::vector<Item> items = std::move(packer).items();
    StepOrder order(items, plan.update_bytes() / sizeof(float), plan.tile_size().elems());
    lines.push_back({std::move(items), std::move(order)});
  }
  return lines;
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
  const std::uint64_t per_chunk = line.order.per_chunk(count());
  const std::uint64_t tile_elems = plan.capacity(brings ? TileKind::momentum : TileKind::masters);
  const std::uint64_t all = leg.elems.first + leg.elems.count;
  std::uint64_t first = leg.elems.first;
  while (first < all) {
    const std::uint64_t chunk = (leg.place + first - leg.elems.first) / per_chunk;
    const std::uint64_t border = (chunk + 1) * per_chunk - leg.place + leg.elems.first;
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

// A visit belongs to the chunk that its line has it in, and is in no later one than that behind it.
void Chunks::cut_schedule(const StatePlan& plan) {
  const std::vector<Visit>& schedule = plan.schedule();
  const std::uint64_t per_chunk = plan.order().per_chunk(count());
  for (Chunk& one : chunks_) one.visits_end = schedule.size();
  std::size_t chunk = count() - 1;
  for (std::size_t i = schedule.size(); i-- > 0;) {
    const std::uint64_t own = schedule[i].action == Action::local
                                  ? schedule[i].place * count() / plan.adam_line().length()
                                  : schedule[i].place / per_chunk;
    for (; chunk > own; --chunk) chunks_[chunk - 1].visits_end = i + 1;
  }
  for (; chunk > 0; --chunk) chunks_[chunk - 1].visits_end = 0;
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
