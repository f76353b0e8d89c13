// Muon as each framework means it: published coefficients, and specs by name.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "ebb/libmuon/spec/spec.h"

namespace ebb::libmuon {

// A published set's coefficients for so many iterations: where there are more than it has, the
// last again, or all from the first again, as its framework does. Sets: simple (Keller Jordan),
// quintic, polar_express, cans, deepseekv4, aol and cubic5 (Emerging-Optimizers),
// polar_express_safe (modded-nanogpt, dion: for a norm times 1.02), polar_express_5
// (gram-newton-schulz). Code::usage for another name, with the nearest.
Result<std::vector<Coefficients>> coefficients(std::string_view set, std::size_t iterations);

struct Preset {
  std::string_view name;
  std::string_view source;  // whose defaults these are
  MuonSpec (*spec)();
};
// In the frameworks' own precision; a spec's `precision` may be changed to fp32, whose result is
// nearer to the formula (docs/numerics.md).
std::span<const Preset> presets();
// Code::usage for another name, with the nearest.
Result<MuonSpec> preset(std::string_view name);

// The spec with one setting changed, both as a group has them: "weight_decay", "0.1". Code::usage
// names a setting that there is not, with the nearest, or a value that does not do. "ns_steps":
// other iterations than the spec's are those of its set of coefficients; of none, the last again.
Result<MuonSpec> with_setting(const MuonSpec& spec, std::string_view name, std::string_view value);
Result<AdamSpec> with_setting(const AdamSpec& spec, std::string_view name, std::string_view value);

}  // namespace ebb::libmuon
