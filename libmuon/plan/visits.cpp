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
    cut(kept ? muon_tiles : hand_outs_, TileKind::masters, i);
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
    return placement() == Placement::shard ? lending_visits(tile) : visits_to_moments(tile);
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
    add(first == Action::prepare ? Action::again : first, pass);
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
  struct Placed {
    double share = 0;
    Visit visit;
    auto key() const {
      const bool first = visit.action == Action::decay || visit.action == Action::normalise;
      return std::tuple(share, !first, visit.tile);
    }
  };
  std::vector<Placed> adam, muon;
  const auto add = [&](const Visit& visit) {
    const bool is_adam = visit.action == Action::local;
    const std::uint64_t length = is_adam ? adam_line().length() : order().length();
    (is_adam ? adam : muon)
        .push_back({static_cast<double>(place(visit)) / static_cast<double>(length), visit});
  };
  for (std::uint64_t i = 0; i < tiles_.size(); ++i)
    for (const Visit& visit : visits_to(i)) add(visit);
  for (std::uint64_t i = 0; i < hand_outs_.size(); ++i)
    add({i, hand_outs_[i].item, Action::hand_out});
  std::ranges::sort(muon, {}, &Placed::key);
  std::ranges::sort(adam, {}, &Placed::key);
  std::vector<Placed> all;
  std::ranges::merge(adam, muon, std::back_inserter(all), {}, &Placed::share, &Placed::share);
  for (const Placed& one : all) schedule_.push_back(one.visit);
}

std::uint64_t StatePlan::place(const Visit& visit) const {
  const std::uint64_t first = entry(visit).first;
  const auto on_line = [&](Action leg, std::uint64_t element) {
    return order().place(visit.item, leg, visit.pass, element);
  };
  switch (visit.action) {
    case Action::decay:
      return on_line(Action::prepare, 0);
    case Action::prepare:
    case Action::again:
      return on_line(visit.action, first);
    case Action::normalise:
      return on_line(Action::finish, 0);
    case Action::finish:
    case Action::hand_out:
      return on_line(Action::finish, first);
    case Action::local:
    case Action::lend:
      break;
  }
  return first;
}

// In a turn what decays comes first, and AdamW's tiles lie evenly between the others.
void StatePlan::order_turns() {
  struct Turn {
    std::vector<Visit> adam, decays, muon;
  };
  std::vector<Turn> turns(shard_order()->turns());
  const auto add = [&](const Visit& visit) {
    Turn& its = turns[turn(visit)];
    (visit.action == Action::local   ? its.adam
     : visit.action == Action::decay ? its.decays
                                     : its.muon)
        .push_back(visit);
  };
  for (std::uint64_t i = 0; i < tiles_.size(); ++i) std::ranges::for_each(visits_to(i), add);
  for (std::uint64_t i = 0; i < hand_outs_.size(); ++i)
    add({i, hand_outs_[i].item, Action::hand_out});
  for (Turn& one : turns) {
    std::ranges::copy(one.muon, std::back_inserter(one.decays));
    std::ranges::copy(spread_between(one.decays, one.adam), std::back_inserter(schedule_));
  }
}

// Second moments of a chunk's matrices go out with its momentum, and come back with its masters.
std::vector<Visit> StatePlan::lending_visits(std::uint64_t tile) const {
  std::set<std::uint32_t> chunks;
  const TileEntry& entry = tiles_[tile];
  const std::span<const FlatRange> moments = items_.moments();
  for (std::size_t i = 0; i < moments.size(); ++i)
    if (formats::overlap(moments[i], {entry.first, entry.count}).count > 0)
      chunks.insert(items_.lent_in(i));
  std::vector<Visit> visits;
  for (const std::uint32_t chunk : chunks)
    for (const Action action : {Action::lend, Action::normalise})
      visits.push_back({tile, chunk, action});
  return visits;
}

std::size_t StatePlan::turn(const Visit& visit) const {
  if (visit.action == Action::lend)
    return ShardOrder::turn_of_chunk(visit.item, TileKind::momentum);
  if (visit.action == Action::normalise)
    return ShardOrder::turn_of_chunk(visit.item, TileKind::masters);
  const TileEntry& tile = entry(visit);
  const TileKind with = visit.action == Action::decay ? TileKind::momentum : tile.kind;
  if (with != TileKind::adam) return shard_order()->turn_of(items_.bundle(tile.item), with);
  return tile.first * shard_order()->turns() / adam_line().length();
}

}  // namespace ebb::libmuon
