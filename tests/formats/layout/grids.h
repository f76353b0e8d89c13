// Small worlds with axes, each axis cut over, copied along or left out: by loops over coordinates,
// which know nothing of strides.
#pragma once

#include <optional>

#include "tests/formats/layout/oracle.h"

namespace ebb::formats::oracle {

struct Grid {
  std::vector<std::uint32_t> sizes;   // by axis, the last is the fastest
  std::vector<std::size_t> shards;    // axes that cut, the last is the fastest
  std::vector<std::size_t> copies;    // axes along which parts are repeated
  std::vector<std::uint32_t> places;  // by axis: where the mesh lies, on those that it leaves out
  std::uint32_t world() const {
    std::uint32_t ranks = 1;
    for (const std::uint32_t size : sizes) ranks *= size;
    return ranks;
  }
  std::uint32_t along(const std::vector<std::size_t>& axes) const {
    std::uint32_t ranks = 1;
    for (const std::size_t axis : axes) ranks *= sizes[axis];
    return ranks;
  }
};

// By rank: counted up as an odometer does.
inline std::vector<std::vector<std::uint32_t>> coordinates(const Grid& grid) {
  std::vector<std::vector<std::uint32_t>> all;
  std::vector<std::uint32_t> at(grid.sizes.size(), 0);
  for (std::uint32_t rank = 0; rank < grid.world(); ++rank) {
    all.push_back(at);
    for (std::size_t axis = at.size(); axis-- > 0;) {
      if (++at[axis] < grid.sizes[axis]) break;
      at[axis] = 0;
    }
  }
  return all;
}

struct GridPlace {
  std::uint32_t shard = 0, copy = 0;
};

// By rank; empty outside of the mesh.
inline std::vector<std::optional<GridPlace>> places_of(const Grid& grid) {
  std::vector<std::optional<GridPlace>> all;
  for (const auto& at : coordinates(grid)) {
    std::vector<bool> spanned(grid.sizes.size(), false);
    GridPlace place;
    for (const std::size_t axis : grid.shards) {
      place.shard = place.shard * grid.sizes[axis] + at[axis];
      spanned[axis] = true;
    }
    for (const std::size_t axis : grid.copies) {
      place.copy = place.copy * grid.sizes[axis] + at[axis];
      spanned[axis] = true;
    }
    bool inside = true;
    for (std::size_t axis = 0; axis < at.size(); ++axis)
      inside = inside && (spanned[axis] || at[axis] == grid.places[axis]);
    all.push_back(inside ? std::optional(place) : std::nullopt);
  }
  return all;
}

inline Mesh mesh_of(const Grid& grid) {
  Submesh within{.world = grid.world()};
  std::vector<std::uint32_t> strides(grid.sizes.size());
  std::uint32_t stride = 1;
  for (std::size_t axis = grid.sizes.size(); axis-- > 0; stride *= grid.sizes[axis])
    strides[axis] = stride;
  std::vector<bool> spanned(grid.sizes.size(), false);
  const auto take = [&](const std::vector<std::size_t>& axes, std::vector<MeshAxis>& into) {
    for (const std::size_t axis : axes) {
      into.push_back({grid.sizes[axis], strides[axis]});
      spanned[axis] = true;
    }
  };
  take(grid.shards, within.shards);
  take(grid.copies, within.copies);
  for (std::size_t axis = 0; axis < strides.size(); ++axis)
    if (!spanned[axis]) within.first += grid.places[axis] * strides[axis];
  return Mesh::part(std::move(within));
}

inline Grid awkward_grid(Random& random) {
  Grid grid;
  std::vector<std::size_t> axes(up_to(random, 4));
  for (std::size_t axis = 0; axis < axes.size(); ++axis) {
    axes[axis] = axis;
    grid.sizes.push_back(static_cast<std::uint32_t>(1 + up_to(random, 3)));
    grid.places.push_back(static_cast<std::uint32_t>(up_to(random, grid.sizes[axis] - 1)));
  }
  std::ranges::shuffle(axes, random);
  for (const std::size_t axis : axes) {
    const std::uint64_t role = up_to(random, 2);
    if (role == 0) grid.shards.push_back(axis);
    if (role == 1) grid.copies.push_back(axis);
  }
  return grid;
}

}  // namespace ebb::formats::oracle
