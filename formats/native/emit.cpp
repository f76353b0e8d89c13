// A converted checkpoint as a store that does not exist yet: the tiles of every rank, their places,
// and the files. Pure arithmetic.
#include <algorithm>
#include <memory>

#include "ebb/formats/core/crc32c.h"
#include "ebb/formats/core/sha256.h"
#include "ebb/formats/native/ebb.h"
#include "ebb/formats/native/store_files.h"
#include "ebb/formats/native/store_model.h"

namespace ebb::formats {
namespace native {
namespace {

struct PlannedRank {
  Superblock superblock;
  Manifest manifest;                   // whole, but its checksums are zeros
  std::vector<std::uint32_t> tensors;  // of the content: one for each segment, tile after tile
};

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

// Fills the rank's tiles from front to back.
void pack(const StoredTensor& stored, DType dtype, FlatRange range, PlannedRank& rank) {
  const std::uint64_t tile_bytes = rank.superblock.tile_bytes;
  const std::uint64_t width = bytes_of(dtype);
  std::vector<Tile>& tiles = rank.manifest.tiles;
  do {
    std::uint64_t offset = tiles.empty() ? 0 : align_up(tiles.back().used_bytes, kSegmentAlign);
    if (tiles.empty() || offset + width > tile_bytes) {
      tiles.emplace_back();
      offset = 0;
    }
    const std::uint64_t count = std::min(range.count, (tile_bytes - offset) / width);
    tiles.back().segments.push_back(
        {stored.param, stored.state, dtype, range.first, count, offset});
    tiles.back().used_bytes = offset + count * width;
    rank.tensors.push_back(stored.tensor);
    range = {range.first + count, range.count - count};
  } while (range.count > 0);
}

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

// Every rank's share under `layout`, in the content's order, packed into tiles of one slot each.
// What the layout gives to several ranks lies at the first of them. Elements of the same content
// get the same store name. REQUIRES: the layout is of the content `model` was made from.
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
    rank.superblock.tile_bytes = tile_bytes;
    for (const StoredTensor& stored : model.stored) {
      const TensorEntry& tensor = content.tensors[stored.tensor];
      const FlatRange range = held(layout, stored.tensor, Rank{r});
      // A tensor without elements is still told of, by the first rank.
      if (range.count > 0 || (volume(tensor.shape) == 0 && r == 0))
        pack(stored, tensor.dtype, range, rank);
    }
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

// A manifest's checksums are of places as well as of bytes: what the blocks' own CRC32Cs lack.
void set_checksums(const Superblock& s, std::span<const std::uint32_t> blocks, Manifest& manifest) {
  const Crc32cOfParts run(s.block_bytes);
  for (std::uint64_t tile = 0; tile < manifest.tiles.size(); ++tile) {
    Tile& into = manifest.tiles[tile];
    for (std::uint64_t block = 0; block < into.crcs.size(); ++block) {
      const std::uint32_t place =
          block_crc({s.store, s.rank, tile, into.slot, block, into.written_step}, {});
      into.crcs[block] =
          run.begun_with(place, blocks[tile * (s.tile_bytes / s.block_bytes) + block]);
    }
  }
}

OutputFile data_file_of(const PlannedRank& rank, const std::string& folder,
                        const Catalog& content) {
  const Superblock& s = rank.superblock;
  OutputFile file;
  file.name = folder + data_file(s.store, s.rank);
  file.size = data_file_bytes(s);
  file.writer = s.rank;
  file.blocks =
      CheckedBlocks{tile_offset(s, 0, 0), s.block_bytes, s.tiles * (s.tile_bytes / s.block_bytes)};
  file.fragments.push_back({0, encode_data_header(s)});
  auto tensor = rank.tensors.begin();
  for (std::uint64_t tile = 0; tile < s.tiles; ++tile)
    for (const Segment& segment : rank.manifest.tiles[tile].segments) {
      std::uint64_t offset = tile_offset(s, tile, 0) + segment.offset;
      for (Box& box : boxes_of(content.tensors[*tensor].shape, {segment.first, segment.count})) {
        const std::uint64_t bytes = volume(box.extent) * bytes_of(segment.dtype);
        if (bytes > 0) file.fragments.push_back({offset, TensorData{*tensor, std::move(box)}});
        offset += bytes;
      }
      ++tensor;
    }
  return file;
}

OutputFile meta_file_of(PlannedRank rank, const std::string& folder) {
  const Superblock s = rank.superblock;
  OutputFile file;
  file.name = folder + std::string(kMetaFile);
  file.size = meta_file_bytes(s);
  file.writer = s.rank;
  file.fragments.push_back({0, encode(s)});
  file.fragments.push_back({kBlock, encode(s)});
  Sealed sealed;
  sealed.size = s.region_bytes;
  sealed.blocks_of = index_of(s.rank);
  const auto planned = std::make_shared<const Manifest>(std::move(rank.manifest));
  sealed.bytes = [planned, s](std::span<const std::uint32_t> blocks) {
    Manifest manifest = *planned;
    set_checksums(s, blocks, manifest);
    return encode(manifest);
  };
  file.fragments.push_back({region_offset(s, 0), std::move(sealed)});
  return file;
}

}  // namespace
}  // namespace native

Result<EmitPlan> emit_ebb(const EmitRequest& request) {
  if (request.layout.tensors().size() != request.content.tensors.size())
    return Error{Code::layout,
                 compose("the layout is of {} tensors, the content of {}",
                         request.layout.tensors().size(), request.content.tensors.size())};
  EBB_TRY_ASSIGN(native::StoreModel model, native::store_model_of(request.content));
  EBB_TRY_ASSIGN(auto ranks, native::plan_ranks(model, request.content, request.layout));
  EmitPlan plan;
  plan.dropped = std::move(model.dropped);
  plan.omitted = std::move(model.omitted);
  for (native::PlannedRank& rank : ranks) {
    const native::Superblock& s = rank.superblock;
    const std::string folder = compose("{}/{}/", native::store_directory(s.store),
                                       native::rank_directory(s.rank, s.world));
    plan.files.push_back(native::data_file_of(rank, folder, request.content));
    plan.commit_files.push_back(native::meta_file_of(std::move(rank), folder));
  }
  return plan;
}

}  // namespace ebb::formats
