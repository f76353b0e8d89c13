// The store's own files. Everything in them is under a checksum, which no fuzzer guesses: the
// targets put the right ones in first, so that what lies behind them is reached.
#include <algorithm>

#include "ebb/formats/core/crc32c.h"
#include "ebb/formats/native/manifest.h"
#include "ebb/formats/native/store_files.h"
#include "tests/fuzz/inputs.h"
#include "tests/fuzz/targets.h"

namespace ebb::fuzz {
namespace {

using formats::load_le;
namespace native = formats::native;

constexpr std::size_t kTrailer = 16;
constexpr std::uint64_t kMaxData = 1 << 20;

void store_u32(std::span<std::byte> at, std::uint32_t value) {
  std::ranges::copy(std::as_bytes(std::span(&value, 1)), at.begin());
}

// Sections are: tag (4) | crc (4) | size (8) | content.
void repair_manifest(std::span<std::byte> manifest) {
  if (manifest.size() < native::kManifestHeaderBytes + kTrailer) return;
  std::span<std::byte> rest = manifest.subspan(native::kManifestHeaderBytes);
  rest = rest.first(rest.size() - kTrailer);
  while (rest.size() >= 16) {
    const auto size = load_le<std::uint64_t>(rest.subspan(8));
    if (size > rest.size() - 16) break;
    store_u32(rest.subspan(4), formats::crc32c(0, rest.subspan(16, size)));
    rest = rest.subspan(16 + size);
  }
  const std::span<std::byte> trailer = manifest.last(kTrailer);
  std::ranges::copy(manifest.subspan(40, 8), trailer.begin());  // the generation
  store_u32(trailer.subspan(12), formats::crc32c(0, manifest.first(manifest.size() - 4)));
}

void repair_superblock(std::span<std::byte> block) {
  store_u32(block.subspan(native::kBlock - 4), formats::crc32c(0, block.first(native::kBlock - 4)));
}

// Both superblocks, then each region's manifest, as far as the first superblock makes sense.
std::optional<native::Superblock> repair_meta(std::span<std::byte> meta) {
  if (meta.size() < native::kRegionsOffset) return std::nullopt;
  repair_superblock(meta.first(native::kBlock));
  repair_superblock(meta.subspan(native::kBlock, native::kBlock));
  const auto superblock = native::decode_superblock(meta.first(native::kBlock), "m", 0);
  if (!superblock) return std::nullopt;
  for (std::uint32_t region = 0; region <= superblock->slots; ++region) {
    const std::uint64_t at = native::region_offset(*superblock, region);
    if (at > meta.size() || meta.size() - at < native::kManifestHeaderBytes) break;
    const auto bytes = load_le<std::uint64_t>(meta.subspan(at + 56));
    if (bytes <= meta.size() - at) repair_manifest(meta.subspan(at, bytes));
  }
  return *superblock;
}

}  // namespace

void native_manifest(ByteView input) {
  ByteVector bytes(input.begin(), input.end());
  bytes.resize((bytes.size() + native::kBlock - 1) / native::kBlock * native::kBlock);
  repair_manifest(bytes);
  const auto manifest = native::decode_manifest(bytes, "m", 0);
  if (!manifest) return;
  const auto again = native::decode_manifest(native::encode(*manifest), "m", 0);
  EBB_CHECK(again.has_value());
  EBB_CHECK(native::encode(*again) == native::encode(*manifest));
}

void native_store(ByteView input) {
  ByteVector meta(input.begin(), input.end());
  const auto superblock = repair_meta(meta);
  if (!superblock || native::data_file_bytes(*superblock) > kMaxData) return;
  const auto tree = std::make_shared<test_support::MemoryTree>("t");
  const std::string folder = native::rank_directory(superblock->rank, superblock->world) + "/";
  ByteVector data = native::encode_data_header(*superblock);
  data.resize(static_cast<std::size_t>(native::data_file_bytes(*superblock)));
  tree->add(folder + std::string(native::kMetaFile), std::move(meta));
  tree->add(folder + native::data_file(superblock->store, superblock->rank), std::move(data));
  look_at(tree);
}

}  // namespace ebb::fuzz
