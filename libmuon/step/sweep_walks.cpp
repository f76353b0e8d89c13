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

// By chunk, in the order of the schedule: chunks of weights are those of a step. High halves have
// tiles of their own, AdamW's in the first chunk: what they travel through is always there.
std::vector<std::vector<std::uint64_t>> Sweep::tiles_with_weights() const {
  const StatePlan& plan = parts_.plan;
  std::vector<std::vector<std::uint64_t>> tiles(parts_.chunks.count());
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::uint64_t> kept;  // by item and element
  for (std::uint64_t tile = 0; tile < plan.tiles().size(); ++tile) {
    const TileEntry& entry = plan.tiles()[tile];
    if (entry.visit != Visit::keep) continue;
    kept.emplace(std::pair(entry.item, entry.first), tile);
    if (!plan.muon(plan.spans(entry).front().param)) tiles.front().push_back(tile);
  }
  for (std::size_t chunk = 0, i = 0; chunk < parts_.chunks.count(); ++chunk)
    for (; i < parts_.chunks.visits_end(chunk); ++i) {
      const ScheduledVisit& visit = plan.schedule()[i];
      if (!visit.changes() || !plan.holds(plan.entry(visit), kMaster) || !plan.hands_out(visit))
        continue;
      const TileEntry& entry = plan.entry(visit);
      if (plan.has_weights(entry))
        tiles[chunk].push_back(visit.tile);
      else if (entry.visit == Visit::finish)
        tiles[chunk].push_back(kept.at({entry.item, entry.first}));
    }
  return tiles;
}

Result<> Sweep::walk(TileCache::Use use, std::uint64_t step, const Visiting& visit,
                     const Between& between) {
  std::vector<TileVisit> visits;
  std::vector<std::size_t> ends;  // by chunk
  for (const auto& tiles : tiles_with_weights()) {
    for (const std::uint64_t tile : tiles) visits.push_back({tile, use});
    ends.push_back(visits.size());
  }
  Stream stream(cache_, std::move(visits), Stream::Repeats::no);
  stream.begin(step);
  const auto go_through = [&](std::size_t chunk) -> Result<> {
    while (stream.position() < ends[chunk]) {
      EBB_TRY_ASSIGN(const Stream::Lease lease, stream.take());
      visit(chunk, stream, lease);
    }
    wait_for_weights();
    return device_works();
  };
  for (std::size_t chunk = 0; chunk < ends.size(); ++chunk)
    EBB_TRY(between(chunk, go_through(chunk)));
  return {};
}

// Masters, or their high halves, are the first column of their tiles.
Result<> Sweep::look(const Between& between) {
  const auto look = [&](std::size_t chunk, Stream& stream, const Stream::Lease& lease) {
    const TileEntry& entry = parts_.plan.tiles()[lease.tile];
    libswap::Lift::Visit lift = lift_->begin();
    const Buffer masters = lift.up(columns_of(entry, lease.buffer).front());
    std::vector<Leaving> out;
    std::vector<OutRange> ranges;
    for (const StatePlan::Span& span : parts_.plan.spans(entry))
      if (const Buffer here = out_of(chunk, span, lift, out); !here.empty())
        ranges.push_back({masters.sub(span.tile_first, span.range.count), here});
    const Event done = parts_.kernels.hand_out(ranges, lift.ready());
    stream.give_back(lease, done);
    end_visit(lift, out, done, done);
  };
  return walk(TileCache::Use::read, 0, look, between);
}

Result<> Sweep::keep(std::uint64_t step, const Between& between) {
  const auto keep = [&](std::size_t chunk, Stream& stream, const Stream::Lease& lease) {
    const TileEntry& entry = parts_.plan.tiles()[lease.tile];
    const Buffer kept = columns_of(entry, lease.buffer).front();
    std::vector<OutRange> ranges;
    for (const StatePlan::Span& span : parts_.plan.spans(entry))
      ranges.push_back({ports_.high(chunk, {span.param, span.range}),
                        kept.sub(span.tile_first, span.range.count)});
    stream.give_back(lease, parts_.kernels.hand_out(ranges, {}));
  };
  EBB_TRY(walk(TileCache::Use::create, step, keep, between));
  return cache_.settle();
}

}  // namespace ebb::libmuon
