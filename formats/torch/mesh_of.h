// torch's DeviceMesh in a pickle: which ranks it has, and which of them wrote the pickle. Forms: of
// torch 2.9 and newer a layout over a map of ranks, before that a tensor of ranks. Source:
// torch/distributed/device_mesh.py, _mesh_layout.py.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "ebb/formats/torch/torch_file.h"

namespace ebb::formats {

using RankList = std::vector<std::uint32_t>;
constexpr std::uint32_t kMostRanks = 1u << 17;  // of one mesh, and no rank has a higher number

// A rank's place in a mesh.
struct MeshPlace {
  Shape shape;                            // ranks of each axis
  std::shared_ptr<const RankList> ranks;  // row-major over `shape`
  std::optional<Shape> coordinate;        // nullopt: the rank that wrote it is not in the mesh
  std::optional<std::uint32_t> rank;      // that wrote it
};

// What BUILD gave an object under a name, slots included; kNoPickle when there is no such thing.
PickleId attribute_of(const PickleGraph& graph, PickleId object, std::string_view name);
// The same in what BUILD gives: a dict, or a tuple of dicts.
PickleId attribute_in(const PickleGraph& graph, PickleId state, std::string_view name);

// Meshes of one file. Borrows both; keeps what it has read, since every tensor refers to one.
class MeshReader {
 public:
  // `named`: the rank that the file's name says, for meshes that do not say who wrote them.
  MeshReader(const TorchFile& file, std::shared_ptr<const ByteSource> source,
             std::optional<std::uint32_t> named)
      : file_(file), graph_(file.graph()), source_(std::move(source)), named_(named) {}

  // nullptr: in a form that is not known. Code::layout: its numbers contradict each other;
  // Code::limit for more than 131072 ranks.
  Result<const MeshPlace*> place_at(PickleId mesh);

 private:
  using Places = std::optional<MeshPlace>;

  Error bad(std::string_view why) const;
  Error too_many() const;
  Result<Places> read(PickleId mesh) const;
  Result<Places> of_tensor(PickleId mesh, PickleId ranks) const;
  Result<Places> of_layout(PickleId mesh, PickleId layout) const;
  std::optional<std::uint64_t> first_of(PickleId mesh, const std::vector<std::uint64_t>& steps,
                                        const Shape& shape, const RankList& map) const;
  Result<Places> with_coordinate(PickleId mesh, MeshPlace place) const;
  Result<std::optional<RankList>> rank_map(PickleId mesh) const;
  Result<std::optional<RankList>> ranks_in(PickleId tensor, Shape& shape) const;

  const TorchFile& file_;
  const PickleGraph& graph_;
  std::shared_ptr<const ByteSource> source_;
  std::optional<std::uint32_t> named_;
  std::map<PickleId, Places> known_;
};

}  // namespace ebb::formats
