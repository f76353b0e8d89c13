#include "ebb/libmuon/step/manifest_template.h"

#include <algorithm>

#include "ebb/libmuon/kernels/kernels.h"

namespace ebb::libmuon {

std::string fingerprint_of(const EngineConfig& config, std::optional<Bf16> bf16,
                           std::uint32_t choice) {
  return config.accelerator != nullptr ? config.accelerator->fingerprint(choice)
                                       : kernel_fingerprint(bf16);
}

formats::native::Manifest manifest_template(std::span<const ParamSpec> params,
                                            std::span<const GroupSpec> groups,
                                            const StatePlan& plan) {
  formats::native::Manifest manifest;
  manifest.states = plan.columns().names();
  manifest.params.reserve(params.size() + plan.derived().size());
  for (const ParamSpec& param : params)
    manifest.params.push_back({param.name, param.shape, param.group});
  for (const auto& [of, param, shape] : plan.derived())
    manifest.params.push_back({params[param].name, shape, params[param].group});
  for (const GroupSpec& group : groups)
    manifest.groups.push_back(std::visit([](const auto& spec) { return to_group(spec); }, group));
  for (const TileEntry& entry : plan.tiles()) {
    formats::native::Tile tile;
    tile.segments = plan.segments(entry);
    const auto& last = tile.segments.back();
    tile.used_bytes = last.offset + last.count * bytes_of(last.dtype);
    manifest.tiles.push_back(std::move(tile));
  }
  return manifest;
}

bool same_places(const formats::native::Manifest& manifest, const StatePlan& plan) {
  const std::vector<std::string>& names = plan.columns().names();
  const bool same_names = manifest.states.size() <= names.size() &&
                          std::equal(manifest.states.begin(), manifest.states.end(), names.begin());
  if (!same_names || manifest.tiles.size() != plan.tiles().size()) return false;
  for (std::size_t i = 0; i < manifest.tiles.size(); ++i)
    if (manifest.tiles[i].segments != plan.segments(plan.tiles()[i])) return false;
  return true;
}

}  // namespace ebb::libmuon
