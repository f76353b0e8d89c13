// Constants of the manifest's byte layout and its limits. Internal to formats/native.
#pragma once

#include <array>
#include <string_view>

#include "ebb/formats/native/store_files.h"

namespace ebb::formats::native {

constexpr std::string_view kManifestMagic = "EBBMANIF";
constexpr std::string_view kVoidMagic = "EBBVOID.";
constexpr std::uint32_t kManifestVersion = 1;
constexpr std::uint64_t kManifestTrailerBytes = 16;
// Each occurs once, in this order; the last two together or not at all.
constexpr std::array<std::string_view, 9> kSectionTags = {"FNGR", "STAT", "GRPS", "PARM", "TILE",
                                                          "CRCS", "BLOB", "VALS", "STPS"};
constexpr std::size_t kSectionsOfAnEngine = 7;
constexpr bool possible_sections(std::size_t count) {
  return count == kSectionsOfAnEngine || count == kSectionTags.size();
}

constexpr std::uint32_t kMaxText = 64 * 1024;
constexpr std::uint32_t kMaxStates = 256;
constexpr std::uint32_t kMaxGroups = 65536;
constexpr std::uint32_t kMaxParams = 1u << 24;
constexpr std::uint32_t kMaxDimensions = 16;
constexpr std::uint32_t kMaxBlobs = 65536;

}  // namespace ebb::formats::native
