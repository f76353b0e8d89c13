// A store of one rank and two tiles, made by hand from the page.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "ebb/formats/native/manifest.h"
#include "ebb/formats/native/store_files.h"
#include "tests/support/source_tree.h"

namespace ebb::formats {

struct TwoTiles {
  static constexpr std::uint64_t kBlockBytes = 4096;

  TwoTiles() {
    superblock.store.fill(std::byte{7});
    superblock.tile_bytes = 2 * kBlockBytes;
    superblock.block_bytes = kBlockBytes;
    superblock.slots = 2;
    superblock.tiles = 2;
    superblock.region_bytes = 4096;
    manifest.store = superblock.store;
    manifest.generation = 1;
    manifest.groups = {{"muon", {}}};
    manifest.tiles.resize(2);
    for (native::Tile& tile : manifest.tiles) tile.used_bytes = kBlockBytes;
    data = native::encode_data_header(superblock);
    data.resize(native::data_file_bytes(superblock));
  }

  // Where a tile's bytes begin in `data`.
  std::byte* tile(std::uint64_t number) {
    return data.data() + native::tile_offset(superblock, number, 0);
  }

  // Its files, with the checksums of what `data` is.
  std::shared_ptr<test_support::MemoryTree> tree() && {
    for (std::size_t i = 0; i < 2; ++i)
      manifest.tiles[i].crcs.push_back(native::block_crc(
          {superblock.store, superblock.rank, i, 0, 0, 0}, {tile(i), kBlockBytes}));
    ByteVector meta = encode(superblock);
    append_bytes(meta, encode(superblock));
    meta.resize(native::meta_file_bytes(superblock));
    std::ranges::copy(encode(manifest), meta.begin() + native::region_offset(superblock, 1));
    auto tree = std::make_shared<test_support::MemoryTree>("run/swap");
    const std::string below = native::rank_directory(superblock.rank, superblock.world) + "/";
    tree->add(below + "lock", std::string_view("1\n"));
    tree->add(below + "meta.ebb", std::move(meta));
    tree->add(below + native::data_file(superblock.store, superblock.rank), std::move(data));
    return tree;
  }

  native::Superblock superblock;
  native::Manifest manifest;
  ByteVector data;
};

}  // namespace ebb::formats
