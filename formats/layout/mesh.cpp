#include "ebb/formats/layout/mesh.h"

#include <algorithm>
#include <functional>
#include <span>

#include "ebb/formats/core/check.h"

namespace ebb::formats {
namespace {

constexpr std::uint64_t kMaxWorld = std::uint64_t{1} << 20;

std::uint64_t product(std::span<const MeshAxis> axes) {
  std::uint64_t ranks = 1;
  for (const MeshAxis& axis : axes) ranks = std::min(ranks * axis.size, kMaxWorld + 1);
  return ranks;
}

// Axes that continue each other are one, and an axis of one rank is none.
std::vector<MeshAxis> joined(std::span<const MeshAxis> axes) {
  std::vector<MeshAxis> all;
  for (const MeshAxis& axis : axes) {
    if (axis.size == 1) continue;
    if (!all.empty() && all.back().stride == std::uint64_t{axis.stride} * axis.size)
      all.back() = {all.back().size * axis.size, axis.stride};
    else
      all.push_back(axis);
  }
  return all;
}

// The ranks 0 to `size` - 1, `stride` apart, and no others.
bool is_run(std::span<const MeshAxis> axes, std::uint32_t size, std::uint32_t stride) {
  if (size == 1) return axes.empty();
  return axes.size() == 1 && axes.front() == MeshAxis{size, stride};
}

std::vector<MeshAxis> all_axes(const Submesh& within) {
  std::vector<MeshAxis> axes = within.shards;
  axes.insert(axes.end(), within.copies.begin(), within.copies.end());
  std::ranges::sort(axes, std::greater<>(), &MeshAxis::stride);
  return axes;
}

Error mesh_error(std::string message) { return {Code::layout, std::move(message)}; }

// Each axis steps over all ranks of those that are faster, so that a rank's number has one reading.
Result<> check_strides(const Submesh& within) {
  std::uint64_t last = within.first;
  std::uint64_t span = 1;  // of the faster axes
  std::vector<MeshAxis> axes = all_axes(within);
  std::ranges::reverse(axes);
  for (const MeshAxis& axis : axes) {
    if (axis.size == 1) continue;
    if (axis.stride == 0 || axis.stride % span != 0 || within.first / axis.stride % axis.size != 0)
      return mesh_error(compose(
          "an axis of {} ranks, {} apart from rank {} on, does not fit the other axes of its mesh",
          axis.size, axis.stride, within.first));
    span = std::uint64_t{axis.stride} * axis.size;
    last += span - axis.stride;
  }
  if (last >= within.world)
    return mesh_error(
        compose("a mesh reaches to rank {} of a world of {} ranks", last, within.world));
  return {};
}

}  // namespace

Mesh Mesh::part(Submesh within) {
  EBB_CHECK(within.world != 0);
  Mesh mesh{static_cast<std::uint32_t>(product(within.shards)),
            static_cast<std::uint32_t>(product(within.copies)), std::move(within)};
  Submesh& place = mesh.within;
  place.shards = joined(place.shards);
  place.copies = joined(place.copies);
  const bool is_world = std::uint64_t{mesh.shard_world} * mesh.replicas == place.world &&
                        place.first == 0 && is_run(place.shards, mesh.shard_world, 1) &&
                        is_run(place.copies, mesh.replicas, mesh.shard_world);
  if (is_world) place = {};
  return mesh;
}

std::optional<Mesh::Place> Mesh::place_of(Rank rank) const {
  const std::uint32_t number = index_of(rank);
  if (within.world == 0) {
    if (number >= ranks()) return std::nullopt;
    return Place{number % shard_world, number / shard_world};
  }
  std::uint64_t reached = within.first;
  const auto along = [&](std::span<const MeshAxis> axes) {
    std::uint32_t index = 0;
    for (const MeshAxis& axis : axes) {
      const std::uint32_t at = number / axis.stride % axis.size;
      reached += std::uint64_t{at} * axis.stride;
      index = index * axis.size + at;
    }
    return index;
  };
  const Place place{along(within.shards), along(within.copies)};
  if (reached != number) return std::nullopt;
  return place;
}

Rank Mesh::rank_of(Place place) const {
  EBB_CHECK(place.shard < shard_world && place.copy < replicas);
  if (within.world == 0) return Rank{place.copy * shard_world + place.shard};
  std::uint32_t rank = within.first;
  const auto along = [&](std::span<const MeshAxis> axes, std::uint32_t index) {
    for (std::size_t i = axes.size(); i-- > 0; index /= axes[i].size)
      rank += index % axes[i].size * axes[i].stride;
  };
  along(within.shards, place.shard);
  along(within.copies, place.copy);
  return Rank{rank};
}

Mesh Mesh::spread() const {
  if (within.world == 0) return {ranks(), 1};
  return part({within.world, within.first, all_axes(within), {}});
}

Mesh Mesh::spread_by_shard() const {
  Submesh all = within;
  if (all.world == 0) all = {ranks(), 0, {{shard_world, 1}}, {{replicas, shard_world}}};
  all.shards.insert(all.shards.end(), all.copies.begin(), all.copies.end());
  all.copies.clear();
  return part(std::move(all));
}

Result<> check(const Mesh& mesh) {
  const std::uint64_t ranks = std::uint64_t{mesh.shard_world} * mesh.replicas;
  if (ranks == 0) return mesh_error("a mesh needs at least 1 rank and 1 copy");
  const std::uint64_t most = std::max<std::uint64_t>(ranks, mesh.within.world);
  if (most > kMaxWorld)
    return Error{Code::limit, compose("{} ranks are more than the limit of {}", most, kMaxWorld)};
  if (mesh.within.world == 0) return {};
  if (product(mesh.within.shards) != mesh.shard_world ||
      product(mesh.within.copies) != mesh.replicas)
    return mesh_error(compose("a mesh of {} shards x {} copies has axes of {} x {} ranks",
                              mesh.shard_world, mesh.replicas, product(mesh.within.shards),
                              product(mesh.within.copies)));
  return check_strides(mesh.within);
}

}  // namespace ebb::formats
