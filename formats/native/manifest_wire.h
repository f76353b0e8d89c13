// Constants of the manifest's byte layout, shared by its encoder and its decoder only.
#pragma once

#include <array>
#include <string_view>

#include "formats/native/store_files.h"

namespace formats::native {

constexpr std::string_view kManifestMagic = "EBBMANIF";
constexpr std::string_view kVoidMagic = "EBBVOID.";
constexpr std::uint32_t kManifestVersion = 1;
constexpr std::uint64_t kManifestTrailerBytes = 16;
// Each occurs once, in this order.
constexpr std::array<std::string_view, 7> kSectionTags = {"FNGR", "STAT", "GRPS", "PARM",
                                                          "TILE", "CRCS", "BLOB"};

}  // namespace formats::native
