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

}  // namespace

void StatePlan::cut(std::vector<TileEntry>& into, Visit visit, std::uint32_t number) const {
  const Item& item = items_[number];
  const std::uint64_t most = capacity(visit);
  std::uint32_t part = 0;
  for (std::uint64_t first = 0; first < item.elems; first += most) {
    while (item.parts[part].item_first + item.parts[part].range.count <= first) ++part;
    into.push_back({visit, number, first, std::min(most, item.elems - first), part});
  }
}

// Momentum tiles of an item, then its master tiles, or what these would hold; behind all of them
// those of second moments; AdamW tiles spread evenly between; at the end what only a cut writes. A
// matrix' high halves are cut as its low ones are.
void StatePlan::lay_tiles() {
  std::vector<TileEntry> muon_tiles, adam_tiles;
  const auto matrices = static_cast<std::uint32_t>(
      placement_ == Placement::shard ? bundles_.size() : order_->items());
  const auto adam_item = static_cast<std::uint32_t>(items_.size()) - 1;
  for (std::uint32_t i = 0; i < matrices; ++i) {
    cut(muon_tiles, Visit::prepare, i);
    const bool masters = out(items_[i].parts.front().param) == Out::weights;
    cut(masters ? muon_tiles : hand_outs_, Visit::finish, i);
  }
  std::ranges::copy(moments_tiles(), std::back_inserter(muon_tiles));
  if (adam_elems_ > 0) cut(adam_tiles, Visit::local, adam_item);
  tiles_ = spread_between(muon_tiles, adam_tiles);
  if (!columns_.in_halves()) return;
  for (std::uint32_t i = 0; i < matrices; ++i) cut(tiles_, Visit::keep, i);
  if (adam_elems_ > 0) cut(tiles_, Visit::keep, adam_item);
}

// An item's lie in one.
std::vector<TileEntry> StatePlan::moments_tiles() const {
  std::vector<TileEntry> tiles;
  for (const FlatRange& own : moments_) {
    if (own.count == 0) continue;
    if (tiles.empty() || tiles.back().count + own.count > capacity(Visit::normalise))
      tiles.push_back({Visit::normalise, moments_item_, own.first, 0, 0});
    tiles.back().count += own.count;
  }
  return tiles;
}

std::vector<ScheduledVisit> StatePlan::visits_to(std::uint64_t tile) const {
  const TileEntry& entry = tiles_[tile];
  std::vector<ScheduledVisit> visits;
  if (entry.visit == Visit::keep) return visits;
  if (entry.visit == Visit::normalise)
    return placement_ == Placement::shard ? lending_visits(tile) : visits_to_moments(tile);
  if (entry.visit == Visit::finish && decays_[entry.item])
    visits.push_back({tile, entry.item, Visit::decay});
  const Item& item = items_[entry.item];
  const auto add = [&](Visit visit, std::uint32_t pass) {
    if (item.streaming.needs(visit, pass, {entry.first, entry.count}, item.elems))
      visits.push_back({tile, entry.item, visit, pass});
  };
  add(entry.visit, 1);
  for (std::uint32_t pass = 2; pass <= item.streaming.passes_over(entry.visit); ++pass)
    add(entry.visit == Visit::prepare ? Visit::again : entry.visit, pass);
  return visits;
}

std::vector<ScheduledVisit> StatePlan::visits_to_moments(std::uint64_t tile) const {
  const TileEntry& entry = tiles_[tile];
  std::vector<ScheduledVisit> visits;
  for (std::uint32_t item = 0; item < moments_.size(); ++item)
    if (formats::overlap(moments_[item], {entry.first, entry.count}).count > 0)
      visits.push_back({tile, item, Visit::normalise});
  return visits;
}

// By the share of its line that lies before a visit. Division rounds both lines alike, so of two
// shares the smaller never comes behind the larger; of equal ones AdamW's is first. What decays
// comes before the momentum that begins where it does, second moments before the masters.
void StatePlan::order_visits() {
  struct Placed {
    double share = 0;
    ScheduledVisit visit;
    auto key() const {
      const bool first = visit.visit == Visit::decay || visit.visit == Visit::normalise;
      return std::tuple(share, !first, visit.tile);
    }
  };
  std::vector<Placed> adam, muon;
  const auto add = [&](const ScheduledVisit& visit) {
    const bool is_adam = visit.visit == Visit::local;
    const std::uint64_t length = is_adam ? adam_line_->length() : order_->length();
    (is_adam ? adam : muon)
        .push_back({static_cast<double>(place(visit)) / static_cast<double>(length), visit});
  };
  for (std::uint64_t i = 0; i < tiles_.size(); ++i)
    for (const ScheduledVisit& visit : visits_to(i)) add(visit);
  for (std::uint64_t i = 0; i < hand_outs_.size(); ++i)
    add({i, hand_outs_[i].item, Visit::hand_out});
  std::ranges::sort(muon, {}, &Placed::key);
  std::ranges::sort(adam, {}, &Placed::key);
  std::vector<Placed> all;
  std::ranges::merge(adam, muon, std::back_inserter(all), {}, &Placed::share, &Placed::share);
  for (const Placed& one : all) schedule_.push_back(one.visit);
}

std::uint64_t StatePlan::place(const ScheduledVisit& visit) const {
  const std::uint64_t first = entry(visit).first;
  const auto on_line = [&](Visit leg, std::uint64_t element) {
    return order_->place(visit.item, leg, visit.pass, element);
  };
  switch (visit.visit) {
    case Visit::decay:
      return on_line(Visit::prepare, 0);
    case Visit::prepare:
    case Visit::again:
      return on_line(visit.visit, first);
    case Visit::normalise:
      return on_line(Visit::finish, 0);
    case Visit::finish:
    case Visit::hand_out:
      return on_line(Visit::finish, first);
    case Visit::local:
    case Visit::keep:
    case Visit::lend:
      break;
  }
  return first;
}

// In a turn what decays comes first, and AdamW's tiles lie evenly between the others.
void StatePlan::order_turns() {
  struct Turn {
    std::vector<ScheduledVisit> adam, decays, muon;
  };
  std::vector<Turn> turns(shard_order_->turns());
  const auto add = [&](const ScheduledVisit& visit) {
    Turn& its = turns[turn(visit)];
    (visit.visit == Visit::local   ? its.adam
     : visit.visit == Visit::decay ? its.decays
                                   : its.muon)
        .push_back(visit);
  };
  for (std::uint64_t i = 0; i < tiles_.size(); ++i) std::ranges::for_each(visits_to(i), add);
  for (std::uint64_t i = 0; i < hand_outs_.size(); ++i)
    add({i, hand_outs_[i].item, Visit::hand_out});
  for (Turn& one : turns) {
    std::ranges::copy(one.muon, std::back_inserter(one.decays));
    std::ranges::copy(spread_between(one.decays, one.adam), std::back_inserter(schedule_));
  }
}

// Second moments of a chunk's matrices go out with its momentum, and come back with its masters.
std::vector<ScheduledVisit> StatePlan::lending_visits(std::uint64_t tile) const {
  std::set<std::uint32_t> chunks;
  const TileEntry& entry = tiles_[tile];
  for (std::size_t i = 0; i < moments_.size(); ++i)
    if (formats::overlap(moments_[i], {entry.first, entry.count}).count > 0)
      chunks.insert(static_cast<std::uint32_t>(lent_in_[i]));
  std::vector<ScheduledVisit> visits;
  for (const std::uint32_t chunk : chunks)
    for (const Visit visit : {Visit::lend, Visit::normalise})
      visits.push_back({tile, chunk, visit});
  return visits;
}

std::size_t StatePlan::turn(const ScheduledVisit& visit) const {
  if (visit.visit == Visit::lend) return ShardOrder::turn_of_chunk(visit.item, Visit::prepare);
  if (visit.visit == Visit::normalise) return ShardOrder::turn_of_chunk(visit.item, Visit::finish);
  const TileEntry& tile = entry(visit);
  const Visit leg = visit.visit == Visit::decay ? Visit::prepare : tile.visit;
  if (leg != Visit::local) return shard_order_->turn_of(bundles_[tile.item], leg);
  return tile.first * shard_order_->turns() / adam_line_->length();
}

}  // namespace ebb::libmuon
