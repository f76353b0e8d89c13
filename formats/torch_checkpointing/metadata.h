// metadata.pkl: plain dicts that say, of each tensor of the items that can be dealt to other ranks,
// what every rank has of it. Source: torch_checkpointing 0.1.1's distributed_metadata.py,
// dtensor_metadata.py, default_metadata.py. Internal to formats/torch_checkpointing.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/layout/placements.h"

namespace ebb::formats::torch_checkpointing {

inline constexpr std::string_view kMetadataFile = "metadata.pkl";

struct SaidMesh {
  Shape shape;
  std::map<std::uint32_t, std::uint64_t> places;  // of ranks, row-major over `shape`
};

// What some ranks have of one tensor.
struct SaidParts {
  std::optional<DType> dtype;  // nullopt: one that is not known
  Shape shape;                 // of the whole
  std::shared_ptr<const SaidMesh> mesh;
  std::vector<Placement> placements;  // on its axes
  // Without a mesh: each of `ranks` has the boxes.
  std::vector<std::uint32_t> ranks;
  std::vector<PlacedBox> boxes;

  bool holds(std::uint32_t rank) const;
  bool is_cut() const;  // not the same, and all of it, at every rank
  // REQUIRES: holds(rank). Code::layout where mesh and shape do not fit.
  Result<PlacedPart> part_of(std::uint32_t rank) const;
};

struct ItemMetadata {
  // By the path below the item, as path_text writes it. Empty: in a form that is not known.
  std::map<std::string, std::vector<SaidParts>> tensors;
  std::map<std::uint32_t, std::string> files;  // of ranks whose file is not <item>_<rank>.pt
};

struct Metadata {
  std::uint32_t world = 1;
  std::map<std::string, ItemMetadata> items;
};

// As Python's json.dumps(list(path), separators=(",", ":")).
std::string path_text(std::span<const PathItem> path);

Result<Metadata> read_metadata(const ByteSource& source);

}  // namespace ebb::formats::torch_checkpointing
