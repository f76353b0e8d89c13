// What an optimizer step means, every choice an explicit value. Presets name the framework they
// follow.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "ebb/formats/core/result.h"
#include "ebb/formats/native/manifest.h"

namespace ebb::libmuon {

enum class Momentum : std::uint8_t { ema, sum };     // M <- bM + (1-b)G, or M <- bM + G
enum class Precision : std::uint8_t { fp32, bf16 };  // of Newton-Schulz
enum class ScaleRule : std::uint8_t { sqrt_max_1_rows_over_cols, match_rms_adamw };
enum class EpsRule : std::uint8_t { add, clamp };  // X / (||X|| + eps), or X / max(||X||, eps)

struct Coefficients {
  float a = 0, b = 0, c = 0;
};

struct MuonSpec {
  double lr = 0.02;
  double beta = 0.95;
  Momentum momentum = Momentum::ema;
  bool nesterov = true;
  double weight_decay = 0.0;             // decoupled, base lr, applied before the update
  std::vector<Coefficients> iterations;  // one per Newton-Schulz step
  double eps = 1e-7;
  EpsRule eps_rule = EpsRule::add;
  Precision precision = Precision::fp32;
  ScaleRule scale = ScaleRule::sqrt_max_1_rows_over_cols;

  // github.com/KellerJordan/Muon: EMA, Nesterov, 5 x (3.4445, -4.7750, 2.0315), eps added.
  static MuonSpec keller();
};

struct AdamSpec {  // torch.optim.AdamW's formula
  double lr = 3e-4;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-10;
  double weight_decay = 0.0;

  // torch.optim.AdamW's defaults: lr 1e-3, betas 0.9 and 0.999, eps 1e-8, weight decay 0.01.
  static AdamSpec torch();
};

constexpr std::size_t kMaxIterations = 32;

// Ranges are checked here: beta in [0,1), lr >= 0, ... Code::usage names the setting and its value;
// Precision::bf16 is Code::unsupported.
Result<> validate(const MuonSpec& spec);
Result<> validate(const AdamSpec& spec);

// To and from the manifest's GROUPS section: all numbers explicit and exact (the shortest decimal
// that reads back as the same number). A setting that is missing, unknown or unreadable is
// Code::unsupported by name; what comes back has passed validate().
formats::native::Group to_group(const MuonSpec& spec);
formats::native::Group to_group(const AdamSpec& spec);
Result<MuonSpec> muon_from(const formats::native::Group& group);
Result<AdamSpec> adam_from(const formats::native::Group& group);

}  // namespace ebb::libmuon
