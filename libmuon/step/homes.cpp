#include "ebb/libmuon/step/homes.h"

#include <algorithm>
#include <array>

namespace ebb::libmuon {
namespace {

using libswap::Homes;
using libswap::Tier;
using libswap::TileBudget;

// By kind of visit; empty: as the budget goes.
using Chosen = std::array<std::optional<Tier>, kVisits.size()>;

Result<Chosen> chosen(const EngineConfig& config, const Columns& columns) {
  Chosen chosen;
  std::array<std::string_view, kVisits.size()> by;  // the state that chose
  for (const auto& [state, asked] : config.tiers) {
    EBB_TRY_ASSIGN(const std::uint32_t number, state_named(state, "a tier"));
    const bool elsewhere = asked != Tier::device || config.accelerator != nullptr;
    const Tier tier = elsewhere ? asked : Tier::host;
    const std::size_t visit = index_of(columns.home(number));
    if (chosen[visit].value_or(tier) != tier)
      return Error{Code::usage,
                   compose("{} and {} are given two tiers; they lie in one tile", by[visit], state),
                   "give both the same"};
    chosen[visit] = tier;
    by[visit] = state;
  }
  return chosen;
}

// The tiles whose home is chosen, and those that the budget decides on, in the order of a step.
struct Sorted {
  Homes homes;
  std::vector<std::uint64_t> open;
};

Sorted sort(const StatePlan& plan, const Chosen& chosen) {
  Sorted sorted;
  sorted.homes.tiles.assign(plan.tiles().size(), Tier::nvme);
  for (const std::uint64_t number : plan.schedule()) {
    if (const auto& tier = chosen[index_of(plan.tiles()[number].visit)])
      sorted.homes.tiles[number] = *tier;
    else
      sorted.open.push_back(number);
  }
  return sorted;
}

// With the chosen homes, and one frame where a tile is left to the disk.
std::uint64_t least_tiles(const Sorted& sorted) {
  return sorted.homes.host_tiles() + std::min<std::uint64_t>(1, sorted.homes.count(Tier::nvme));
}

}  // namespace

Result<Housing> house(const EngineConfig& config, const StatePlan& plan,
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
  const std::uint64_t must_page = paged - sorted.open.size();
  if (split.frames == 0)
    split.frames = std::min(must_page, TileBudget::frames_worth_having(config.tile_bytes));
  homes.frames = split.frames;
  homes.stay(std::min<std::uint64_t>(split.resident, sorted.open.size()), sorted.open);
  return Housing{std::move(homes), least};
}

}  // namespace ebb::libmuon
