// From the manifests of all ranks to one Catalog: tile segments become chunks.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/native/survey.h"

namespace ebb::formats::native {

// A chunk's holder and tag are the rank and the tile it lies in.
struct StoreCatalog {
  Catalog catalog;
  std::vector<Superblock> superblocks;   // by rank
  std::vector<std::vector<Tile>> tiles;  // by rank; without their segments
};

class StoreCatalogBuilder {
 public:
  StoreCatalogBuilder(const Survey& survey, std::uint64_t generation);

  struct RankFilesSeen {
    std::string folder;  // in the tree, with the closing slash
    std::uint64_t data_bytes = 0;
    std::uint64_t meta_bytes = 0;
    std::string meta_name;  // for messages
  };
  // Ranks in ascending order. Fails when this one's manifest describes another model or step.
  Result<> add(const RankFilesSeen& files, const Superblock& superblock, Manifest manifest);
  StoreCatalog finish() &&;

 private:
  Result<> add_segment(const Segment& segment, std::uint64_t tile_at, std::uint64_t tile,
                       Rank rank);
  void add_model();
  void add_blobs();

  StoreCatalog store_;
  Manifest model_;  // rank 0's, without its tiles: what must be the same on all ranks
  std::map<std::pair<std::uint32_t, std::uint32_t>, TensorEntry> tensors_;  // by (param, state)
  std::vector<std::vector<Blob>> blobs_;                                    // by rank
};

}  // namespace ebb::formats::native
