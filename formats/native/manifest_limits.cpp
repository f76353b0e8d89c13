#include "ebb/formats/native/manifest_limits.h"

#include "ebb/formats/core/json_text.h"
#include "ebb/formats/native/store_files.h"

namespace ebb::formats::native {
namespace {

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

Result<> check_count(std::string_view what, std::uint64_t count, std::uint64_t limit) {
  if (count <= limit) return {};
  return Error{Code::limit, compose("{} {}: a store keeps at most {}", count, what, limit)};
}

Result<> check_param(const Param& param) {
  EBB_TRY(check_name("parameter", param.name));
  if (param.shape.size() <= kMaxDimensions) return {};
  return Error{Code::limit, compose("parameter {} has {} dimensions: a store keeps at most {}",
                                    printable(param.name), param.shape.size(), kMaxDimensions)};
}

}  // namespace

Result<> check_name(std::string_view what, std::string_view name) {
  if (name.size() > kMaxText)
    return Error{Code::limit, compose("{} {}: its name has {} bytes, the limit of a store is {}",
                                      what, printable(name, 40), name.size(), kMaxText)};
  if (is_utf8(name)) return {};
  return Error{Code::usage, compose("{} {}: its name is not UTF-8", what, printable(name)),
               "the formats that checkpoints are converted to keep names as UTF-8"};
}

Result<> check_limits(const Manifest& manifest) {
  EBB_TRY(check_count("states", manifest.states.size(), kMaxStates));
  EBB_TRY(check_count("parameters", manifest.params.size(), kMaxParams));
  EBB_TRY(check_count("groups", manifest.groups.size(), kMaxGroups));
  EBB_TRY(check_count("values", manifest.blobs.size(), kMaxBlobs));
  for (const std::string& state : manifest.states) EBB_TRY(check_name("state", state));
  for (const Param& param : manifest.params) EBB_TRY(check_param(param));
  for (const Blob& blob : manifest.blobs) EBB_TRY(check_name("value", blob.key));
  return {};
}

Result<> check_tile_bytes(std::uint64_t tile_bytes) {
  if (tile_bytes >= kBlock && tile_bytes % kBlock == 0 && tile_bytes <= kMaxTileBytes) return {};
  return Error{Code::usage, compose("tile size {} is not a multiple of {} bytes up to 1 GiB",
                                    tile_bytes, kBlock)};
}

Result<> check_tiles(std::uint64_t tiles, std::uint64_t tile_bytes) {
  if (tiles <= kMostPlannedTiles) return {};
  return Error{Code::limit,
               compose("the state of this rank takes {} tiles of {} bytes: the limit is {}", tiles,
                       tile_bytes, kMostPlannedTiles),
               "give larger tiles, or more ranks"};
}

}  // namespace ebb::formats::native
