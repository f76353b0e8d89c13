// Which tiles there are, and in which order a step visits them.
#include <algorithm>
#include <set>
#include <tuple>

#include "ebb/libmuon/plan/state_plan.h"

namespace ebb::libmuon {

namespace {

// Both in their own order, the others evenly between the first.
template <typename T>
std::vector<T> spread_between(const std::vector<T>& first, const std::vector<T>& others) {
  std::vector<T> all;
  all.reserve(first.size() + others.size());
  std::size_t next = 0;
  for (std::size_t i = 0; i < first.size(); ++i) {
    all.push_back(first[i]);
    const std::size_t due = (i + 1) * others.size() / first.size();
    for (; next < due; ++next) all.push_back(others[next]);
  }
  for (; next < others.size(); ++next) all.push_back(others[next]);
  return all;
}

// What moves such a tile, in the first pass over it.
Action first_on(TileKind kind) {
  return kind == TileKind::momentum  ? Action::prepare
         : kind == TileKind::masters ? Action::finish
                                     : Action::local;
}

}  // namespace

void StatePlan::cut(std::vector<TileEntry>& into, TileKind kind, std::uint32_t number) const {
  const Item& item = items()[number];
  const std::uint64_t most = capacity(kind);
  std::uint32_t part = 0;
  for (std::uint64_t first = 0; first < item.elems; first += most) {
    while (item.parts[part].item_first + item.parts[part].range.count <= first) ++part;
    into.push_back({kind, number, first, std::min(most, item.elems - first), part});
  }
}

// Momentum tiles of an item, then its master tiles, or what these would hold; behind all of them
// those of second moments; AdamW tiles spread evenly between; at the end what only a cut writes,
// which of a matrix is cut as its masters are.
void StatePlan::lay_tiles() {
  std::vector<TileEntry> muon_tiles, adam_tiles;
  const std::uint32_t matrices = items_.matrices();
  const auto adam_item = static_cast<std::uint32_t>(items().size()) - 1;
  for (std::uint32_t i = 0; i < matrices; ++i) {
    cut(muon_tiles, TileKind::momentum, i);
    const bool kept = out(items()[i].parts.front().param) == Out::weights &&
                      !columns_.of(TileKind::masters).empty();
    cut(kept ? muon_tiles : without_tile_, TileKind::masters, i);
  }
  std::ranges::copy(moments_tiles(), std::back_inserter(muon_tiles));
  if (adam_elems() > 0) cut(adam_tiles, TileKind::adam, adam_item);
  tiles_ = spread_between(muon_tiles, adam_tiles);
  if (!columns_.bound_masters()) return;
  for (std::uint32_t i = 0; i < matrices; ++i) cut(tiles_, TileKind::bound, i);
  if (adam_elems() > 0) cut(tiles_, TileKind::bound, adam_item);
}

// An item's lie in one.
std::vector<TileEntry> StatePlan::moments_tiles() const {
  std::vector<TileEntry> tiles;
  for (const FlatRange& own : items_.moments()) {
    if (own.count == 0) continue;
    if (tiles.empty() || tiles.back().count + own.count > capacity(TileKind::moments))
      tiles.push_back({TileKind::moments, items_.moments_item(), own.first, 0, 0});
    tiles.back().count += own.count;
  }
  return tiles;
}

std::vector<Visit> StatePlan::visits_to(std::uint64_t tile) const {
  const TileEntry& entry = tiles_[tile];
  std::vector<Visit> visits;
  if (entry.kind == TileKind::bound) return visits;
  if (entry.kind == TileKind::moments)
    return placement() == Placement::shard ? visits_to_shard_moments(tile)
                                           : visits_to_moments(tile);
  if (entry.kind == TileKind::masters && items_.decays(entry.item))
    visits.push_back({tile, entry.item, Action::decay});
  const Item& item = items()[entry.item];
  const auto add = [&](Action action, std::uint32_t pass) {
    if (item.streaming.needs(action, pass, {entry.first, entry.count}, item.elems))
      visits.push_back({tile, entry.item, action, pass});
  };
  const Action first = first_on(entry.kind);
  add(first, 1);
  for (std::uint32_t pass = 2; pass <= item.streaming.passes_over(entry.kind); ++pass)
    add(first == Action::prepare ? Action::recompute : first, pass);
  return visits;
}

std::vector<Visit> StatePlan::visits_to_moments(std::uint64_t tile) const {
  const TileEntry& entry = tiles_[tile];
  std::vector<Visit> visits;
  const std::span<const FlatRange> moments = items_.moments();
  for (std::uint32_t item = 0; item < moments.size(); ++item)
    if (formats::overlap(moments[item], {entry.first, entry.count}).count > 0)
      visits.push_back({tile, item, Action::normalise});
  return visits;
}

// By the share of its line that lies before a visit. Division rounds both lines alike, so of two
// shares the smaller never comes behind the larger; of equal ones AdamW's is first. What decays
// comes before the momentum that begins where it does, second moments before the masters.
void StatePlan::order_visits() {
  std::vector<Visit> adam, muon;
  const auto add = [&](Visit visit) {
    visit.place = place(visit);
    (visit.action == Action::local ? adam : muon).push_back(visit);
  };
  for (std::uint64_t i = 0; i < tiles_.size(); ++i) std::ranges::for_each(visits_to(i), add);
  for (std::uint64_t i = 0; i < without_tile_.size(); ++i)
    add({i, without_tile_[i].item, Action::emit_update});
  std::ranges::sort(muon, {}, [](const Visit& visit) {
    const bool first = visit.action == Action::decay || visit.action == Action::normalise ||
                       visit.action == Action::write_moments;
    return std::tuple(visit.place, !first, visit.tile);
  });
  std::ranges::sort(adam, {}, &Visit::place);
  const auto share = [this](const Visit& visit) {
    const bool is_adam = visit.action == Action::local;
    return static_cast<double>(visit.place) /
           static_cast<double>(is_adam ? adam_line().length() : order().length());
  };
  std::ranges::merge(adam, muon, std::back_inserter(schedule_), {}, share, share);
}

std::uint64_t StatePlan::place(const Visit& visit) const {
  const std::uint64_t first = entry(visit).first;
  const auto on_line = [&](Action action, std::uint64_t element) {
    return order().place(visit.item, action, visit.pass, element);
  };
  const auto in_turn = [&](TileKind with) {
    return order().length() / shard_order()->turns() * ShardOrder::turn_of(visit.chunk, with);
  };
  switch (visit.action) {
    case Action::decay:
      return on_line(Action::prepare, 0);
    case Action::prepare:
    case Action::recompute:
      return on_line(visit.action, first);
    case Action::normalise:
      return on_line(Action::finish, 0);
    case Action::read_moments:
      return in_turn(TileKind::momentum);
    case Action::write_moments:
      return in_turn(TileKind::masters);
    case Action::finish:
    case Action::emit_update:
      return on_line(Action::finish, first);
    case Action::local:
      break;
  }
  return first;
}

// Second moments of a chunk's matrices go out with its momentum, and come back with its masters.
std::vector<Visit> StatePlan::visits_to_shard_moments(std::uint64_t tile) const {
  std::set<std::uint32_t> chunks;
  const TileEntry& entry = tiles_[tile];
  const std::span<const FlatRange> moments = items_.moments();
  for (std::size_t i = 0; i < moments.size(); ++i)
    if (formats::overlap(moments[i], {entry.first, entry.count}).count > 0)
      chunks.insert(items_.moments_chunk(i));
  std::vector<Visit> visits;
  for (const std::uint32_t chunk : chunks)
    for (const Action action : {Action::read_moments, Action::write_moments})
      visits.push_back({.tile = tile, .action = action, .chunk = chunk});
  return visits;
}

}  // namespace ebb::libmuon
