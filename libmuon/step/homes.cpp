#include "ebb/libmuon/step/homes.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <utility>

namespace ebb::libmuon {
namespace {

using libswap::Homes;
using libswap::Tier;
using libswap::TileBudget;

// By kind of tile; empty: as the budget goes.
using Chosen = std::array<std::optional<Tier>, kTileKinds.size()>;

Result<Chosen> chosen(const EngineConfig& config, const Columns& columns) {
  Chosen chosen;
  std::array<std::string_view, kTileKinds.size()> by;  // the state that chose
  for (const auto& [state, asked] : config.tiers) {
    EBB_TRY_ASSIGN(const std::uint32_t number, state_named(state, "a tier"));
    const bool elsewhere = asked != Tier::device || config.accelerator != nullptr;
    const Tier tier = elsewhere ? asked : Tier::host;
    const std::size_t kind = index_of(columns.home(number));
    if (chosen[kind].value_or(tier) != tier)
      return Error{Code::usage,
                   compose("{} and {} are given two tiers; they lie in one tile", by[kind], state),
                   "give both the same"};
    chosen[kind] = tier;
    by[kind] = state;
  }
  return chosen;
}

// The tiles whose home is chosen, and those that the budget decides on: by how often a step visits
// them, those first that it visits most, and in its order.
struct Sorted {
  Homes homes;
  std::map<std::uint64_t, std::vector<std::uint64_t>, std::greater<>> open;

  void stay(std::uint64_t resident) {
    for (const auto& [visits, tiles] : open) {
      const std::uint64_t these = std::min<std::uint64_t>(resident, tiles.size());
      homes.stay(these, tiles);
      resident -= these;
    }
  }
};

Sorted sort(const StatePlan& plan, const Chosen& chosen) {
  Sorted sorted;
  sorted.homes.tiles.assign(plan.tiles().size(), Tier::nvme);
  std::vector<std::uint64_t> visits(plan.tiles().size());
  for (const Visit& visit : plan.schedule())
    if (visit.has_tile()) ++visits[visit.tile];
  for (const Visit& visit : plan.schedule()) {
    if (!visit.has_tile()) continue;
    const std::uint64_t often = std::exchange(visits[visit.tile], 0);
    if (often == 0) continue;  // its first visit has placed it
    if (const auto& tier = chosen[index_of(plan.tiles()[visit.tile].kind)])
      sorted.homes.tiles[visit.tile] = *tier;
    else
      sorted.open[often].push_back(visit.tile);
  }
  return sorted;
}

// With the chosen homes, and one frame where a tile is left to the disk.
std::uint64_t least_tiles(const Sorted& sorted) {
  return sorted.homes.host_tiles() + std::min<std::uint64_t>(1, sorted.homes.count(Tier::nvme));
}

}  // namespace

Result<PlacedTiles> place_tiles(const EngineConfig& config, const StatePlan& plan,
                                std::uint64_t beside_tiles) {
  EBB_TRY_ASSIGN(const Chosen tiers, chosen(config, plan.columns()));
  Sorted sorted = sort(plan, tiers);
  const std::uint64_t least = beside_tiles + least_tiles(sorted) * config.tile_bytes;
  if (config.budget_bytes < least)
    return Error{
        Code::no_memory,
        compose("a budget of {} bytes is too small for rank {}: the smallest that works is "
                "{} bytes, {} of them for updates, Newton-Schulz and what travels",
                config.budget_bytes, index_of(plan.rank()), least, beside_tiles),
        "give a larger budget, or a smaller chunk or tile size"};
  Homes& homes = sorted.homes;
  const std::uint64_t paged = homes.count(Tier::nvme);
  const std::uint64_t left =
      config.budget_bytes - beside_tiles - homes.host_tiles() * config.tile_bytes;
  EBB_TRY_ASSIGN(TileBudget split, TileBudget::divide(paged, config.tile_bytes, left));
  // What is to stay on the disk passes through frames, however much room there is.
  std::uint64_t must_page = paged;
  for (const auto& [visits, tiles] : sorted.open) must_page -= tiles.size();
  if (split.frames == 0)
    split.frames = std::min(must_page, TileBudget::frames_worth_having(config.tile_bytes));
  homes.frames = split.frames;
  sorted.stay(split.resident);
  return PlacedTiles{std::move(homes), least};
}

}  // namespace ebb::libmuon
