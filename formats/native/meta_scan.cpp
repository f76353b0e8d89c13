#include "ebb/formats/native/meta_scan.h"

#include <algorithm>

#include "ebb/formats/core/refuse.h"
#include "ebb/formats/native/store_files.h"

namespace ebb::formats::native {
namespace {

std::string place_of(const ByteSource& meta, std::uint64_t offset) {
  return compose("{}:{}", meta.name(), offset);
}

Result<Superblock> read_superblock(const ByteSource& meta, std::uint64_t offset) {
  if (meta.size() < offset + kBlock)
    return refuse(Code::corrupt, meta.name(), offset,
                  compose("the file ends at {}, inside its superblocks", meta.size()));
  ByteVector bytes(kBlock);
  EBB_TRY(meta.read(offset, bytes));
  return decode_superblock(bytes, meta.name(), offset);
}

// Damage is a value here; only a disk that cannot be read is an error.
bool is_damage(Code code) {
  return code == Code::corrupt || code == Code::unsupported || code == Code::limit;
}

Result<Manifest> read_whole(const ByteSource& meta, const Superblock& superblock,
                            const ManifestHeader& header, std::uint64_t offset) {
  if (header.bytes > superblock.region_bytes)
    return Error{Code::corrupt,
                 compose("{}: a manifest of {} bytes in a region of {}", place_of(meta, offset),
                         header.bytes, superblock.region_bytes)};
  EBB_TRY_ASSIGN(const ByteVector bytes, read_bytes(meta, offset, header.bytes, kMaxRegionBytes));
  EBB_TRY_ASSIGN(Manifest manifest, decode_manifest(bytes, meta.name(), offset));
  EBB_TRY(check_fits(manifest, superblock, place_of(meta, offset)));
  return manifest;
}

Result<ManifestHeader> read_header(const ByteSource& meta, std::uint64_t offset) {
  EBB_TRY_ASSIGN(const ByteVector bytes,
                 read_bytes(meta, offset, kManifestHeaderBytes, kManifestHeaderBytes));
  return decode_manifest_header(bytes, meta.name(), offset);
}

bool belongs(const ManifestHeader& header, const Superblock& superblock) {
  return header.store == superblock.store && header.rank == superblock.rank &&
         header.world == superblock.world;
}

Error foreign(const ByteSource& meta, std::uint64_t offset) {
  return refuse(Code::corrupt, meta.name(), offset, "a manifest of another store or rank");
}

bool never_written(const ByteSource& meta, std::uint64_t offset) {
  const auto bytes = read_bytes(meta, offset, kManifestHeaderBytes, kManifestHeaderBytes);
  return bytes && std::ranges::all_of(*bytes, [](std::byte byte) { return byte == std::byte{0}; });
}

Result<> look_at_region(const ByteSource& meta, std::uint32_t region, MetaScan& scan) {
  const std::uint64_t offset = region_offset(scan.superblock, region);
  auto header = read_header(meta, offset);
  if (!header) {
    if (!is_damage(header.error().code)) return std::move(header).error();
    if (!never_written(meta, offset)) scan.unreadable.push_back(std::move(header).error());
    return {};
  }
  if (!belongs(*header, scan.superblock)) {
    scan.unreadable.push_back(foreign(meta, offset));
    return {};
  }
  RegionFinding finding{region, *header, std::nullopt};
  if (!header->is_void) {
    auto manifest = read_whole(meta, scan.superblock, *header, offset);
    if (!manifest && !is_damage(manifest.error().code)) return std::move(manifest).error();
    if (!manifest) finding.damage = std::move(manifest).error();
  }
  scan.regions.push_back(std::move(finding));
  return {};
}

}  // namespace

const RegionFinding* MetaScan::newest(const auto& counts) const {
  const RegionFinding* newest = nullptr;
  for (const RegionFinding& found : regions)
    if (counts(found) && (!newest || found.header.generation > newest->header.generation))
      newest = &found;
  return newest;
}

std::uint64_t MetaScan::newest_seen() const {
  const RegionFinding* const found = newest([](const auto&) { return true; });
  return found == nullptr ? 0 : found->header.generation;
}

bool MetaScan::may_have_committed() const {
  const RegionFinding* const found = newest([](const auto& one) { return !one.header.is_void; });
  return found != nullptr && found->header.generation >= 2;
}

const RegionFinding* MetaScan::newest_valid(std::uint64_t limit) const {
  return newest(
      [&](const auto& found) { return found.valid() && found.header.generation <= limit; });
}

Result<MetaScan> scan_meta(const ByteSource& meta) {
  auto a = read_superblock(meta, 0), b = read_superblock(meta, kBlock);
  for (const auto* read : {&a, &b})
    if (!*read && !is_damage(read->error().code)) return read->error();
  if (!a && !b) return std::move(a).error();
  MetaScan scan;
  scan.superblock = a ? *a : *b;
  if (!a) scan.damage_a = std::move(a).error();
  if (!b) scan.damage_b = std::move(b).error();
  if (meta.size() < meta_file_bytes(scan.superblock))
    return Error{Code::corrupt,
                 compose("{}: the file ends here; its manifests need {} bytes",
                         place_of(meta, meta.size()), meta_file_bytes(scan.superblock))};
  for (std::uint32_t region = 0; region <= scan.superblock.slots; ++region) {
    EBB_TRY(look_at_region(meta, region, scan));
  }
  return scan;
}

Result<std::uint64_t> newest_begun(const ByteSource& meta, const Superblock& superblock) {
  std::uint64_t newest = 0;
  for (std::uint32_t region = 0; region <= superblock.slots; ++region) {
    const auto header = read_header(meta, region_offset(superblock, region));
    if (!header && !is_damage(header.error().code)) return header.error();
    if (header && belongs(*header, superblock) && !header->is_void)
      newest = std::max(newest, header->generation);
  }
  return newest;
}

Result<Manifest> read_manifest(const ByteSource& meta, const Superblock& superblock,
                               std::uint32_t region) {
  const std::uint64_t offset = region_offset(superblock, region);
  EBB_TRY_ASSIGN(const ManifestHeader header, read_header(meta, offset));
  if (!belongs(header, superblock)) return foreign(meta, offset);
  return read_whole(meta, superblock, header, offset);
}

Result<> check_fits(const Manifest& manifest, const Superblock& superblock,
                    const std::string& where) {
  if (manifest.tiles.size() != superblock.tiles)
    return Error{Code::corrupt, compose("{}: a manifest of {} tiles in a store of {}", where,
                                        manifest.tiles.size(), superblock.tiles)};
  for (std::size_t i = 0; i < manifest.tiles.size(); ++i) {
    const Tile& tile = manifest.tiles[i];
    if (tile.slot < superblock.slots && tile.used_bytes <= superblock.tile_bytes &&
        tile.crcs.size() == div_ceil(tile.used_bytes, superblock.block_bytes))
      continue;
    return Error{
        Code::corrupt,
        compose("{}: tile {} with slot {}, {} bytes and {} checksums does not fit the store", where,
                i, tile.slot, tile.used_bytes, tile.crcs.size())};
  }
  return {};
}

}  // namespace ebb::formats::native
