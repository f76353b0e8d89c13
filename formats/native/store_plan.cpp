#include "ebb/formats/native/store_plan.h"

#include <algorithm>

#include "ebb/formats/core/sha256.h"
#include "ebb/formats/native/store_files.h"

namespace ebb::formats::native {
namespace {

constexpr std::uint64_t kTileBytes = 4 * MiB;     // as the engine's
constexpr std::uint64_t kBlockBytes = 256 * KiB;  // under one checksum, as the engine's
constexpr std::uint64_t kSegmentAlign = 64;       // a cache line
constexpr std::uint32_t kFewestSlots = 2;
// A lone first generation is taken for what a crash left of a first commit (survey.h).
constexpr std::uint64_t kGeneration = 2;

FlatRange held(const Layout& layout, std::uint32_t tensor, Rank rank) {
  const Layout::Spec& spec = layout.spec();
  const bool first_copy =
      spec.policy == Policy::replicated ? rank == Rank{0} : index_of(rank) < spec.mesh.shard_world;
  return first_copy ? layout.held(tensor, rank) : FlatRange{};
}

// One rank's tiles, filled from front to back.
class Packer {
 public:
  explicit Packer(std::uint64_t tile_bytes, PlannedRank& rank)
      : tile_bytes_(tile_bytes), rank_(rank) {}

  void add(const StoredTensor& stored, DType dtype, FlatRange range) {
    const std::uint64_t width = bytes_of(dtype);
    do {
      std::uint64_t offset =
          tiles().empty() ? 0 : align_up(tiles().back().used_bytes, kSegmentAlign);
      if (tiles().empty() || offset + width > tile_bytes_) {
        tiles().emplace_back();
        offset = 0;
      }
      const std::uint64_t count = std::min(range.count, (tile_bytes_ - offset) / width);
      tiles().back().segments.push_back(
          {stored.param, stored.state, dtype, range.first, count, offset});
      tiles().back().used_bytes = offset + count * width;
      rank_.tensors.push_back(stored.tensor);
      range = {range.first + count, range.count - count};
    } while (range.count > 0);
  }

 private:
  std::vector<Tile>& tiles() { return rank_.manifest.tiles; }

  std::uint64_t tile_bytes_;
  PlannedRank& rank_;
};

// Large content has the engine's tiles; a small one's fit it, so that it takes no megabytes.
std::uint64_t tile_bytes_for(std::uint64_t bytes_of_a_rank) {
  if (bytes_of_a_rank >= kTileBytes) return kTileBytes;
  const std::uint64_t wanted = std::max<std::uint64_t>(bytes_of_a_rank, 1);
  return align_up(wanted, wanted > kBlockBytes ? kBlockBytes : kBlock);
}

// The store is called by what it holds: names, shapes, places, settings, values and step.
void name_store(std::vector<PlannedRank>& ranks) {
  Sha256 sha;
  for (const PlannedRank& rank : ranks) sha.update(encode(rank.manifest));
  const std::string hex = sha.hex();
  const auto uuid = store_in_directory_name("store-" + hex.substr(0, 32));
  EBB_CHECK(uuid.has_value());
  const std::uint64_t digest = std::stoull(hex.substr(32, 16), nullptr, 16);
  for (PlannedRank& rank : ranks) {
    rank.manifest.store = rank.superblock.store = *uuid;
    rank.superblock.layout_digest = digest;
  }
}

}  // namespace

Result<std::vector<PlannedRank>> plan_ranks(const StoreModel& model, const Catalog& content,
                                            const Layout& layout) {
  const std::uint32_t world = layout.spec().mesh.world();
  if (world > kMaxWorld)
    return Error{Code::limit, compose("{} ranks: the limit of a store is {}", world, kMaxWorld)};
  std::uint64_t most = 0;
  for (std::uint32_t r = 0; r < world; ++r) {
    std::uint64_t bytes = 0;
    for (const StoredTensor& stored : model.stored)
      bytes = align_up(bytes, kSegmentAlign) + held(layout, stored.tensor, Rank{r}).count *
                                                   bytes_of(content.tensors[stored.tensor].dtype);
    most = std::max(most, bytes);
  }
  const std::uint64_t tile_bytes = tile_bytes_for(most);
  std::vector<PlannedRank> ranks(world);
  for (std::uint32_t r = 0; r < world; ++r) {
    PlannedRank& rank = ranks[r];
    rank.manifest = model.manifest;
    rank.manifest.rank = rank.superblock.rank = Rank{r};
    rank.manifest.world = rank.superblock.world = world;
    rank.manifest.generation = kGeneration;
    Packer packer(tile_bytes, rank);
    for (const StoredTensor& stored : model.stored) {
      const TensorEntry& tensor = content.tensors[stored.tensor];
      const FlatRange range = held(layout, stored.tensor, Rank{r});
      // A tensor without elements is still told of, by the first rank.
      if (range.count > 0 || (volume(tensor.shape) == 0 && r == 0))
        packer.add(stored, tensor.dtype, range);
    }
    rank.superblock.tile_bytes = tile_bytes;
    rank.superblock.block_bytes = std::min(tile_bytes, kBlockBytes);
    rank.superblock.slots = kFewestSlots;
    rank.superblock.tiles = rank.manifest.tiles.size();
    for (Tile& tile : rank.manifest.tiles) {
      tile.written_step = rank.manifest.step;
      tile.crcs.assign(div_ceil(tile.used_bytes, rank.superblock.block_bytes), 0);
    }
  }
  name_store(ranks);
  for (PlannedRank& rank : ranks) {
    rank.superblock.region_bytes = encode(rank.manifest).size();
    EBB_TRY(check_geometry(rank.superblock, compose("the store of {} ranks", world)));
  }
  return ranks;
}

}  // namespace ebb::formats::native
