// What an optimizer step means, every choice an explicit value (docs/numerics.md has the formulas).
// Presets are in presets.h.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "ebb/formats/core/dtype.h"
#include "ebb/formats/core/result.h"
#include "ebb/formats/native/manifest.h"

namespace ebb::libmuon {

enum class Momentum : std::uint8_t { ema, sum };  // M <- bM + (1-b)G, or M <- bM + G
// What is taken off a weight: lr wd w, wd w, or lr^2 wd w; lr wd w where w and O agree in sign, and
// s lr^2 wd w there. l2: nothing; wd w is added to the gradient, before the momentum.
enum class Decay : std::uint8_t { decoupled, independent, palm, cautious, cautious_lr2, l2 };

// Of Newton-Schulz: what its operands and results are rounded to; tf32: the operands of products
// alone. Sums are fp32's.
enum class Precision : std::uint8_t { fp32, bf16, fp16, tf32 };
// What results are rounded to, and kept in.
constexpr Precision kept_as(Precision precision) {
  return precision == Precision::tf32 ? Precision::fp32 : precision;
}
// Where, in D = bC + a(AB): once, D; or each product and sum, aA before AB, or a(AB) behind it.
enum class Rounding : std::uint8_t { fused, each, each_product_first };
// Gram: the iterations work on X X^T, for matrices that are not square.
enum class Form : std::uint8_t { standard, gram };
enum class EpsRule : std::uint8_t { add, clamp };  // X / (||X|| + eps), or X / max(||X||, eps)
// Of U; of U rounded as results are; of U in the dtype it is handed in (MuonSpec::handed).
enum class NormOf : std::uint8_t { update, rounded, handed };

// s of a rows x cols matrix.
enum class ScaleRule : std::uint8_t {
  sqrt_max_1_rows_over_cols,
  match_rms_adamw,  // 0.2 sqrt(max(rows, cols))
  sqrt_max,         // sqrt(max(rows, cols))
  sqrt_rows_over_cols,
  one,
};
// Of the matrix that Newton-Schulz takes, or of the parameter's last two dimensions.
enum class ScaleOf : std::uint8_t { matrix, last_two };
// What is rounded on the way from O to a weight: nothing; sO as results are; lr s O to `handed`; or
// sO as results are and then to `handed`, to which O is not rounded before.
enum class ScaleRounding : std::uint8_t { none, scaled, step, handed };
// Which of a matrix' dimensions `rows` are in `scale`, as frameworks mean it: outputs.
enum class Orientation : std::uint8_t { rows_out, cols_out };

// Of O, before it is applied: one number for each row, or for each place along the longer side (of
// a square: for each row). NorMuon's; blocks.h has their shape.
enum class SecondMoment : std::uint8_t { none, rows, longer };

// More than two dimensions: a stack of matrices of the last two, or one matrix with all but the
// first as columns; flatten_4: the second from four on, the filters of convolutions.
enum class Dims : std::uint8_t { stack, flatten, flatten_4 };
// A matrix' rows, each part by Newton-Schulz of its own: so many equal parts; parts of such sizes;
// or groups, each of such sizes, where the same parts of all groups are one matrix (q, k, v).
struct Split {
  enum class Kind : std::uint8_t { none, heads, rows, groups };
  Kind kind = Kind::none;
  std::vector<std::uint32_t> sizes = {};  // of heads: how many
  bool operator==(const Split&) const = default;
};

// What a step hands out where weights are bound: new weights, whose masters the engine keeps, or
// what the trainer is to add to masters of its own, of which the engine knows nothing.
enum class Out : std::uint8_t { weights, update };

struct Coefficients {
  float a = 0, b = 0, c = 0;
  bool operator==(const Coefficients&) const = default;
};

// What is left out is what a store means that does not say it.
struct MuonSpec {
  double lr = 0.02;
  double beta = 0.95;
  Momentum momentum = Momentum::ema;
  bool nesterov = true;
  double weight_decay = 0.0;
  Decay decay = Decay::decoupled;

  std::vector<Coefficients> iterations;  // one per Newton-Schulz step
  double eps = 1e-7;
  EpsRule eps_rule = EpsRule::add;
  double norm_factor = 1;  // of the norm, before eps
  NormOf norm_of = NormOf::update;
  Precision precision = Precision::fp32;
  Rounding rounding = Rounding::fused;
  Precision handed = Precision::fp32;  // of U and O, beside `precision`: fp32 or bf16
  Form form = Form::standard;
  // Gram: before which iterations, counted from 0, X X^T is made anew.
  std::vector<std::uint32_t> restarts = {};

  SecondMoment second_moment = SecondMoment::none;
  double second_beta = 0.95;  // of that, as the next two
  double second_eps = 1e-10;
  EpsRule second_eps_rule = EpsRule::add;  // O / (sqrt(V) + eps), or O / sqrt(max(V, eps))

  ScaleRule scale = ScaleRule::sqrt_max_1_rows_over_cols;
  double scale_factor = 1;  // times that
  ScaleOf scale_of = ScaleOf::matrix;
  ScaleRounding scale_rounding = ScaleRounding::none;
  // What weights are rounded to behind their decay and behind the step, as a parameter of that type
  // is: fp32 or bf16. They are kept as fp32 all the same.
  Precision weights = Precision::fp32;
  Orientation orientation = Orientation::rows_out;
  Dims dims = Dims::stack;
  Split split = {};
  Out out = Out::weights;

  // The preset of that name in fp32.
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
constexpr std::size_t kMaxParts = 4096;  // of a split

// What O is rounded to behind `precision`, before it travels.
constexpr Precision handed_back(const MuonSpec& spec) {
  return spec.scale_rounding == ScaleRounding::handed ? Precision::fp32 : spec.handed;
}
// What U and O may travel as without losing a bit: U as what Newton-Schulz first rounds it to, O as
// what it answers.
DType update_dtype(const MuonSpec& spec);
DType result_dtype(const MuonSpec& spec);

// Ranges are checked here: beta in [0,1), lr >= 0, ... Code::usage names the setting and its value;
// coefficients that grow what rounding leaves above 1, which would end in infinity, are refused
// too.
Result<> validate(const MuonSpec& spec);
Result<> validate(const AdamSpec& spec);

// To and from the manifest's GROUPS section: all numbers explicit and exact (the shortest decimal
// that reads back as the same number). A setting that is missing, unknown or unreadable is
// Code::unsupported by name, with the nearest one that is known; what comes back has passed
// validate().
formats::native::Group to_group(const MuonSpec& spec);
formats::native::Group to_group(const AdamSpec& spec);
Result<MuonSpec> muon_from(const formats::native::Group& group);
Result<AdamSpec> adam_from(const formats::native::Group& group);

}  // namespace ebb::libmuon
