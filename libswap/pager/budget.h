// How many tiles a rank keeps in memory for good, and which, and through how many frames the others
// pass.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ebb/formats/core/result.h"

namespace ebb::libswap {

// Of tiles at home in memory, at once, for a cut.
inline constexpr std::uint64_t kMostResidentWrites = 8;

struct TileBudget {
  std::uint64_t resident = 0;
  std::uint64_t frames = 0;  // 0 where all tiles are resident
  std::uint64_t bytes(std::uint64_t tile_bytes) const { return (resident + frames) * tile_bytes; }
  // What a disk works on at once, both ways together.
  static std::uint64_t frames_in_flight(std::uint64_t tile_bytes);
  // The most that a budget is spent on. A disk that ends operations together wants as much again
  // for what was read with them, and for what is to be written with the next.
  static std::uint64_t frames_worth_having(std::uint64_t tile_bytes);
  // Fails (Code::no_memory) below one tile, naming the smallest budget that works.
  static Result<TileBudget> divide(std::uint64_t tiles, std::uint64_t tile_bytes,
                                   std::uint64_t budget_bytes);
};

// Where state is between two visits.
enum class Tier : std::uint8_t {
  nvme,    // in the store alone
  host,    // in memory
  device,  // in the memory of the device that computes
};

// Of a rank's tiles.
struct Homes {
  std::vector<Tier> tiles;   // by number
  std::uint64_t frames = 0;  // through which those pass that are at home on the disk

  // As many in memory as `budget` says, evenly over `order`: every tile once, as they are used.
  static Homes spread(const TileBudget& budget, std::span<const std::uint64_t> order);
  // So many of these stay in the host's memory, evenly.
  void stay(std::uint64_t resident, std::span<const std::uint64_t> of);
  std::uint64_t count(Tier tier) const;
  // Host frames through which tiles pass that are at home on the device, when a cut writes them or
  // a resume reads them.
  std::uint64_t bounces() const;
  std::uint64_t host_tiles() const { return count(Tier::host) + frames + bounces(); }
};

}  // namespace ebb::libswap
