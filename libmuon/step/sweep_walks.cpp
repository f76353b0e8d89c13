// What goes through tiles without a step: a new store is filled, weights are handed out, what a cut
// wants of them is brought.
#include <map>
#include <utility>

#include "ebb/libmuon/step/sweep.h"

namespace ebb::libmuon {

using libswap::Buffer;
using libswap::Event;
using libswap::Stream;
using libswap::TileCache;
using libswap::TileVisit;

Result<> Sweep::create(std::uint64_t step,
                       const std::function<Result<>(std::uint64_t, std::span<std::byte>)>& fill) {
  std::vector<TileVisit> all;
  for (std::uint64_t tile = 0; tile < parts_.plan.tiles().size(); ++tile)
    all.push_back({tile, TileCache::Use::create});
  Stream stream(cache_, std::move(all), Stream::Repeats::no);
  stream.begin(step);
  std::vector<std::byte> elsewhere;  // a tile of the host, for those that are at home on the device
  while (!stream.ended()) {
    EBB_TRY_ASSIGN(const Stream::Lease lease, stream.take());
    if (lease.buffer.device == nullptr) {
      EBB_TRY(fill(lease.tile, lease.buffer.bytes()));
      stream.give_back(lease, {});
      continue;
    }
    elsewhere.assign(lease.buffer.size(), std::byte{0});
    EBB_TRY(fill(lease.tile, elsewhere));
    const Event filled = libswap::copy(libswap::buffer_of(std::span(elsewhere)), lease.buffer, {});
    parts_.pool.help_until(filled);
    stream.give_back(lease, filled);
  }
  EBB_TRY(device_works());
  return cache_.settle();
}

std::vector<StatePlan::Span> Sweep::spans_of(const Of& of, const TileEntry& entry) const {
  std::vector<StatePlan::Span> spans = parts_.plan.spans(entry);
  if (of) std::erase_if(spans, [&](const auto& span) { return !of(span.param); });
  return spans;
}

// take(chunk, visit) of each that moves masters for the last time in a step: those that it finds in
// its tile, or bound ones.
template <typename Take>
void Sweep::for_masters(const Take& take) const {
  const StatePlan& plan = parts_.plan;
  const bool bound = plan.columns().masters() == Masters::bound;
  for (std::size_t chunk = 0, i = 0; chunk < parts_.chunks.count(); ++chunk)
    for (; i < parts_.chunks.visits_end(chunk); ++i) {
      const Visit& visit = plan.schedule()[i];
      const bool moves =
          visit.has_tile() ? visit.changes() && plan.holds(plan.entry(visit), kMaster) : bound;
      if (moves && plan.hands_out(visit)) take(chunk, visit);
    }
}

// What is bound has tiles of its own, AdamW's in the first chunk: what they travel through is
// always there.
Sweep::Tiles Sweep::tiles_with_weights(const Of& of) const {
  const StatePlan& plan = parts_.plan;
  Tiles tiles(parts_.chunks.count());
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::uint64_t> kept;  // by item and element
  for (std::uint64_t tile = 0; tile < plan.tiles().size(); ++tile) {
    const TileEntry& entry = plan.tiles()[tile];
    if (entry.kind != TileKind::bound) continue;
    kept.emplace(std::pair(entry.item, entry.first), tile);
    if (!plan.muon(plan.spans(entry).front().param)) tiles.front().push_back(tile);
  }
  for_masters([&](std::size_t chunk, const Visit& visit) {
    const TileEntry& entry = plan.entry(visit);
    if (plan.has_weights(entry))
      tiles[chunk].push_back(visit.tile);
    else if (entry.kind == TileKind::masters)
      tiles[chunk].push_back(kept.at({entry.item, entry.first}));
  });
  for (auto& some : tiles)
    std::erase_if(some,
                  [&](std::uint64_t tile) { return spans_of(of, plan.tiles()[tile]).empty(); });
  return tiles;
}

Sweep::Tiles Sweep::tiles_with_masters(const Of& of) const {
  Tiles tiles(parts_.chunks.count());
  for_masters([&](std::size_t chunk, const Visit& visit) {
    if (!spans_of(of, parts_.plan.entry(visit)).empty()) tiles[chunk].push_back(visit.tile);
  });
  return tiles;
}

Result<> Sweep::walk(const Tiles& all, TileCache::Use use, std::uint64_t step,
                     const Visiting& visit, const Between& between) {
  std::vector<TileVisit> visits;
  std::vector<std::size_t> ends;  // by chunk
  for (const auto& tiles : all) {
    for (const std::uint64_t tile : tiles) visits.push_back({tile, use});
    ends.push_back(visits.size());
  }
  Stream stream(cache_, std::move(visits), Stream::Repeats::no);
  stream.begin(step);
  const auto go_through = [&](std::size_t chunk) -> Result<> {
    while (stream.position() < ends[chunk]) {
      EBB_TRY_ASSIGN(const Stream::Lease lease, stream.take());
      const Event visit_ends = visit(chunk, lease);
      stream.give_back(lease, visit_ends);
      before_chunk_ends(visit_ends);
    }
    return {};
  };
  for (std::size_t chunk = 0; chunk < ends.size(); ++chunk)
    EBB_TRY(between(chunk, end_chunk(go_through(chunk))));
  return {};
}

// Masters, or what is bound of them, are the first column of their tiles.
Result<> Sweep::look(const Between& between) {
  const auto look = [&](std::size_t chunk, const Stream::Lease& lease) {
    const TileEntry& entry = parts_.plan.tiles()[lease.tile];
    libswap::Lift::Visit lift = lift_->begin();
    const Buffer masters = lift.up(columns_of(entry, lease.buffer).front());
    std::vector<Leaving> out;
    std::vector<OutRange> ranges;
    for (const StatePlan::Span& span : parts_.plan.spans(entry))
      if (const Buffer here = out_of(chunk, span, lift, out); !here.empty())
        ranges.push_back({masters.sub(span.tile_first, span.range.count), here});
    const Event done = parts_.kernels.hand_out(ranges, lift.ready());
    return end_visit(lift, out, done, done);
  };
  return walk(tiles_with_weights({}), TileCache::Use::read, 0, look, between);
}

// Into tiles of the host's memory: none of them is visited, so the disk is their home.
Event Sweep::keep_bits(std::span<const OutRange> ranges) {
  if (parts_.kernels.device() == nullptr) return parts_.kernels.hand_out(ranges, {});
  std::vector<Event> copied;
  for (const auto& [from, to] : ranges) copied.push_back(libswap::copy(from, to, {}));
  return libswap::all_of(copied);
}

Result<> Sweep::keep(const Of& of, std::uint64_t step, const Between& between) {
  const auto keep = [&](std::size_t chunk, const Stream::Lease& lease) {
    const TileEntry& entry = parts_.plan.tiles()[lease.tile];
    const Buffer kept = columns_of(entry, lease.buffer).front();
    std::vector<OutRange> ranges;
    for (const StatePlan::Span& span : spans_of(of, entry))
      ranges.push_back({parts_.exchange.bound(chunk, {span.param, span.range}),
                        kept.sub(span.tile_first, span.range.count)});
    return keep_bits(ranges);
  };
  const auto use = of ? TileCache::Use::modify : TileCache::Use::create;
  EBB_TRY(walk(tiles_with_weights(of), use, step, keep, between));
  return cache_.settle();
}

Event Sweep::change_tile(std::size_t chunk, const Stream::Lease& lease, const Change& change,
                         const Event& behind) {
  parts_.pool.help_until(behind);
  const TileEntry& entry = parts_.plan.tiles()[lease.tile];
  libswap::Lift::Visit lift = lift_->begin();
  const Buffer tile = lift.up(lease.buffer);
  const Event done = change(chunk, entry, columns_of(entry, tile), lift);
  const Event down = lift.down(tile, lease.buffer, done);
  return end_visit(lift, {}, done, down);
}

Result<> Sweep::change(const Tiles& tiles, std::uint64_t step, const Change& change,
                       const Between& between) {
  const auto visit = [&](std::size_t chunk, const Stream::Lease& lease) {
    return change_tile(chunk, lease, change, {});
  };
  EBB_TRY(walk(tiles, TileCache::Use::modify, step, visit, between));
  return cache_.settle();
}

Result<> Sweep::take(const Of& of, std::uint64_t step, const Between& between) {
  const bool in_halves = parts_.plan.columns().in_halves();
  const auto take = [&](std::size_t chunk, const TileEntry& entry,
                        const std::vector<Buffer>& columns, libswap::Lift::Visit& lift) {
    std::vector<TakeRange> ranges;
    for (const StatePlan::Span& span : spans_of(of, entry)) {
      const Buffer given =
          in_halves ? Buffer() : lift.up(parts_.exchange.weight(chunk, {span.param, span.range}));
      ranges.push_back({given, columns.front().sub(span.tile_first, span.range.count)});
    }
    return parts_.kernels.take(ranges, lift.ready());
  };
  return change(tiles_with_masters(of), step, take, between);
}

std::vector<std::size_t> Sweep::held(const NamedStates& states, const TileEntry& entry) const {
  std::vector<std::size_t> all;
  for (std::size_t i = 0; i < states.count(); ++i)
    if (parts_.plan.holds(entry, states.state(i))) all.push_back(i);
  return all;
}

// A tile that holds several of the states is visited once.
Sweep::Tiles Sweep::tiles_with(const NamedStates& states) const {
  const StatePlan& plan = parts_.plan;
  Tiles tiles(states.portions());
  for (std::uint64_t tile = 0; tile < plan.tiles().size(); ++tile) {
    const TileEntry& entry = plan.tiles()[tile];
    if (held(states, entry).empty()) continue;
    for (const StatePlan::Span& span : plan.spans(entry))
      for (const std::size_t portion : states.portions_of({span.param, span.range}))
        if (tiles[portion].empty() || tiles[portion].back() != tile) tiles[portion].push_back(tile);
  }
  return tiles;
}

template <typename Take>
void Sweep::for_parts(const NamedStates& states, std::size_t i, std::size_t portion,
                      const TileEntry& entry, const Buffer& column, const Take& take) const {
  for (const StatePlan::Span& span : parts_.plan.spans(entry))
    for (const FlatRange part : states.parts(portion, {span.param, span.range}))
      take(column.sub(span.tile_first + part.first - span.range.first, part.count),
           parts_.exchange.state(states, i, portion, {span.param, part}));
}

// Each state is a visit of a lift: a slot has room for one.
Result<> Sweep::read(const NamedStates& states, const Between& between) {
  const auto read = [&](std::size_t portion, const Stream::Lease& lease) {
    const TileEntry& entry = parts_.plan.tiles()[lease.tile];
    const std::vector<Buffer> columns = columns_of(entry, lease.buffer);
    Event last;
    std::vector<Event> ends;
    for (const std::size_t i : held(states, entry)) {
      libswap::Lift::Visit lift = lift_->begin();
      const std::size_t column = *parts_.plan.columns().find(entry.kind, states.state(i));
      std::vector<Leaving> out;
      std::vector<OutRange> ranges;
      for_parts(states, i, portion, entry, lift.up(columns[column]),
                [&](const Buffer& kept, const Buffer& to) {
                  const Buffer here = lift.room_for(to);
                  out.push_back({here, to});
                  ranges.push_back({kept, here});
                });
      lift.also_behind(last);
      last = parts_.kernels.hand_out(ranges, lift.ready());
      ends.push_back(end_visit(lift, out, last, last));
    }
    return libswap::all_of(ends);
  };
  return walk(tiles_with(states), TileCache::Use::read, 0, read, between);
}

Result<> Sweep::write(const NamedStates& states, std::uint64_t step, const Between& between) {
  const auto write = [&](std::size_t portion, const Stream::Lease& lease) {
    Event last;
    for (const std::size_t i : held(states, parts_.plan.tiles()[lease.tile])) {
      const auto write_one = [&](std::size_t, const TileEntry& entry,
                                 const std::vector<Buffer>& columns, libswap::Lift::Visit& lift) {
        const std::size_t column = *parts_.plan.columns().find(entry.kind, states.state(i));
        std::vector<OutRange> ranges;
        for_parts(states, i, portion, entry, columns[column],
                  [&](const Buffer& kept, const Buffer& from) {
                    ranges.push_back({lift.up(from), kept});
                  });
        return parts_.kernels.hand_out(ranges, lift.ready());
      };
      last = change_tile(portion, lease, write_one, last);
    }
    return last;
  };
  EBB_TRY(walk(tiles_with(states), TileCache::Use::modify, step, write, between));
  return cache_.settle();
}

}  // namespace ebb::libmuon
