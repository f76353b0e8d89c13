#include <memory>

#include "ebb/formats/core/crc32c.h"
#include "ebb/formats/native/ebb.h"
#include "ebb/formats/native/store_files.h"
#include "ebb/formats/native/store_plan.h"

namespace ebb::formats {
namespace {

using native::kBlock;
using native::Manifest;
using native::PlannedRank;
using native::Superblock;

// A manifest's checksums are of places as well as of bytes: what the blocks' own CRC32Cs lack.
void set_checksums(const Superblock& s, std::span<const std::uint32_t> blocks, Manifest& manifest) {
  const Crc32cOfParts run(s.block_bytes);
  for (std::uint64_t tile = 0; tile < manifest.tiles.size(); ++tile) {
    native::Tile& into = manifest.tiles[tile];
    for (std::uint64_t block = 0; block < into.crcs.size(); ++block) {
      const std::uint32_t place =
          native::block_crc({s.store, s.rank, tile, into.slot, block, into.written_step}, {});
      into.crcs[block] =
          run.begun_with(place, blocks[tile * (s.tile_bytes / s.block_bytes) + block]);
    }
  }
}

OutputFile data_file_of(const PlannedRank& rank, const std::string& folder,
                        const Catalog& content) {
  const Superblock& s = rank.superblock;
  OutputFile file;
  file.name = folder + native::data_file(s.store, s.rank);
  file.size = native::data_file_bytes(s);
  file.writer = s.rank;
  file.blocks = CheckedBlocks{native::tile_offset(s, 0, 0), s.block_bytes,
                              s.tiles * (s.tile_bytes / s.block_bytes)};
  file.fragments.push_back({0, native::encode_data_header(s)});
  auto tensor = rank.tensors.begin();
  for (std::uint64_t tile = 0; tile < s.tiles; ++tile)
    for (const native::Segment& segment : rank.manifest.tiles[tile].segments) {
      std::uint64_t offset = native::tile_offset(s, tile, 0) + segment.offset;
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
  file.name = folder + std::string(native::kMetaFile);
  file.size = native::meta_file_bytes(s);
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
  file.fragments.push_back({native::region_offset(s, 0), std::move(sealed)});
  return file;
}

}  // namespace

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
  for (PlannedRank& rank : ranks) {
    const Superblock& s = rank.superblock;
    const std::string folder = compose("{}/{}/", native::store_directory(s.store),
                                       native::rank_directory(s.rank, s.world));
    plan.files.push_back(data_file_of(rank, folder, request.content));
    plan.commit_files.push_back(meta_file_of(std::move(rank), folder));
  }
  return plan;
}

}  // namespace ebb::formats
