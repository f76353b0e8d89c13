// manifest_template, fingerprint_of: what of a store's manifest follows from the description alone;
// same_places: whether a stored one does.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "ebb/formats/native/manifest.h"
#include "ebb/libmuon/step/config.h"

namespace ebb::libmuon {

// The fingerprint names the kernels that compute an engine's steps.
std::string fingerprint_of(const EngineConfig& config, std::optional<Bf16> bf16,
                           std::uint32_t choice);
// The template has parameters, groups and tiles, but no fingerprint.
formats::native::Manifest manifest_template(std::span<const ParamSpec> params,
                                            std::span<const GroupSpec> groups,
                                            const StatePlan& plan);
// Whether a manifest's state lies where the plan's does. The store may be older than some of our
// states: it has none of them.
bool same_places(const formats::native::Manifest& manifest, const StatePlan& plan);

}  // namespace ebb::libmuon
