#include "ebb/libmuon/step/homes.h"

#include <algorithm>

namespace ebb::libmuon {
namespace {

using libswap::Homes;
using libswap::Tier;
using libswap::TileBudget;

// Of every kind of tile; empty: as the budget goes.
struct Chosen {
  std::optional<Tier> momentum, master, adam;

  const std::optional<Tier>& of(TileKind kind) const {
    if (kind == TileKind::momentum) return momentum;
    return kind == TileKind::master ? master : adam;
  }
};

Result<Chosen> chosen(const EngineConfig& config) {
  const std::vector<std::string> names = state_names();
  for (const auto& [state, tier] : config.tiers)
    if (std::ranges::find(names, state) == names.end())
      return Error{Code::usage, compose("a tier is given for {}, which is no state", state),
                   "states are master, momentum_buffer, exp_avg and exp_avg_sq"};
  const auto tier_of = [&](StateId state) -> std::optional<Tier> {
    const auto found = config.tiers.find(names[static_cast<std::size_t>(state)]);
    if (found == config.tiers.end()) return std::nullopt;
    const bool elsewhere = found->second != Tier::device || config.accelerator != nullptr;
    return elsewhere ? found->second : Tier::host;
  };
  const auto first = tier_of(StateId::exp_avg), second = tier_of(StateId::exp_avg_sq);
  if (first && second && *first != *second)
    return Error{Code::usage, "exp_avg and exp_avg_sq are given two tiers; they lie in one tile",
                 "give both the same"};
  return Chosen{tier_of(StateId::momentum_buffer), tier_of(StateId::master),
                first ? first : second};
}

// The tiles whose home is chosen, and those that the budget decides on, in the order of a step.
struct Sorted {
  Homes homes;
  std::vector<std::uint64_t> open;
};

Sorted sort(const StatePlan& plan, const Chosen& chosen) {
  Sorted sorted;
  sorted.homes.tiles.assign(plan.tiles().size(), Tier::nvme);
  for (const std::uint64_t tile : plan.schedule()) {
    if (const auto& tier = chosen.of(plan.tiles()[tile].kind))
      sorted.homes.tiles[tile] = *tier;
    else
      sorted.open.push_back(tile);
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
  EBB_TRY_ASSIGN(const Chosen tiers, chosen(config));
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
