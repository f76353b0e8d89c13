// Mesh: ranks as shards times copies, and which ranks of a job they are. A mesh may be a part of a
// larger world, a submesh: the ranks outside of it hold nothing. Pure arithmetic.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ebb/formats/core/result.h"
#include "ebb/formats/core/units.h"

namespace ebb::formats {

// `size` ranks, `stride` apart.
struct MeshAxis {
  std::uint32_t size = 1;
  std::uint32_t stride = 1;
  bool operator==(const MeshAxis&) const = default;
};

// Where a mesh lies in a larger world: its shards along some axes and its copies along others, each
// list with the slowest first.
struct Submesh {
  std::uint32_t world = 0;  // ranks of the job; 0: the mesh is all of it
  std::uint32_t first = 0;  // the rank of the first shard's first copy
  std::vector<MeshAxis> shards = {}, copies = {};
  bool operator==(const Submesh&) const = default;
};

// Replica groups of an HSDP run are one more axis: in a mesh that is all of its world, ranks r and
// r + shard_world hold the same piece.
struct Mesh {
  std::uint32_t shard_world = 1;  // ranks that share one copy
  std::uint32_t replicas = 1;     // copies
  Submesh within = {};

  // Of an empty list: one. Two descriptions of the same shards and copies of the same ranks give
  // equal meshes. REQUIRES: `within` names its world.
  static Mesh part(Submesh within);

  std::uint32_t ranks() const { return shard_world * replicas; }
  std::uint32_t world() const { return within.world == 0 ? ranks() : within.world; }

  struct Place {
    std::uint32_t shard = 0;
    std::uint32_t copy = 0;
  };
  // Empty outside of the mesh.
  std::optional<Place> place_of(Rank rank) const;
  Rank rank_of(Place place) const;
  // Every rank of it a shard of its own, in the order of ranks: equal for meshes of the same ranks.
  Mesh spread() const;
  // Every rank of it a shard of its own, copies of the same shard next to each other.
  Mesh spread_by_shard() const;

  bool operator==(const Mesh&) const = default;
};

// Fails (Code::layout, Code::limit) where no rank, or more than one, would stand at some place.
Result<> check(const Mesh& mesh);

}  // namespace ebb::formats
