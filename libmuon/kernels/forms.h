// The two forms of Newton-Schulz as sequences of stages, for whoever computes them: the host's
// pool, panel by panel, or a device's queue, product by product.
//
// `spec`: MuonSpec, or a device's form of it. `stages` has gram(): gram = X X^T, mirrored;
// square(sum) and symmetric(sum): to = beta from + alpha left right, the second mirrored where the
// precision asks for it; identity(to, from, value): to = from + value I; mirror(part);
// advance(left, beta, alpha = 1): X = beta X + alpha left X; swap(a, b).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ebb/libmuon/kernels/rounding.h"
#include "ebb/libmuon/spec/spec.h"

namespace ebb::libmuon {

// X and a second one, m x n, m <= n; the others m x m. `gram` is X X^T.
enum class Part : std::uint8_t { x, y, gram, q, z, t };

// to = beta from + alpha left right.
struct Sum {
  Part to;
  float alpha;
  Part left, right;
  float beta;
  Part from;  // of no use where beta is 0
};

// Of the standard form: whether an iteration goes without A^2.
template <typename Spec>
constexpr bool skips_square(const Spec& spec, const Coefficients& step) {
  return step.c == 0 && spec.precision != Precision::fp32 && spec.rounding == Rounding::fused;
}

// fp32: with A = X X^T, Q = aI + bA + cA^2, X <- QX. Others, whose frameworks do so: B = bA + cA^2,
// X <- aX + BX. So in tf32 aX is of the X that is kept, not of the one that is rounded. Where B
// would be bA alone, and is rounded once, Emerging-Optimizers does not make it.
template <typename Spec, typename Stages>
void standard_form(const Spec& spec, Stages& stages) {
  for (const Coefficients& step : spec.iterations) {
    stages.gram();
    if (skips_square(spec, step)) {
      stages.advance(Part::gram, step.a, step.b);
      continue;
    }
    stages.square({Part::q, step.c, Part::gram, Part::gram, step.b, Part::gram});
    if (spec.precision != Precision::fp32) {
      stages.advance(Part::q, step.a);
      continue;
    }
    stages.identity(Part::q, Part::q, step.a);
    stages.mirror(Part::q);
    stages.advance(Part::q, 0.0f);
  }
}

// Iterations that share a Gram matrix.
struct GramPart {
  std::size_t first = 0, end = 0;
};
// One more than there are restarts.
template <typename Spec>
std::vector<GramPart> gram_parts(const Spec& spec) {
  std::vector<GramPart> parts;
  for (std::size_t i = 0; i < spec.iterations.size(); ++i) {
    if (i == 0 || std::ranges::find(spec.restarts, i) != spec.restarts.end())
      parts.push_back({i, i});
    parts.back().end = i + 1;
  }
  return parts;
}

// a of aI + Z: where each term of a sum is rounded, that one too.
template <typename Spec>
constexpr float on_diagonal(const Spec& spec, float a) {
  if (spec.rounding == Rounding::fused) return a;
  if (spec.precision == Precision::bf16) return rounded<Precision::bf16>(a);
  return spec.precision == Precision::fp16 ? rounded<Precision::fp16>(a) : a;
}

// Q of R = X X^T: with Z = bR + cR^2 the next X is (aI + Z) X, whose R is (aI + Z) R (aI + Z); Q
// collects the factors. Z always on the left: then what rounding adds to R and to Q is alike.
template <typename Spec, typename Stages>
void gram_factor(const Spec& spec, const GramPart& part, Stages& stages) {
  for (std::size_t i = part.first; i < part.end; ++i) {
    const auto [a, b, c] = spec.iterations[i];
    stages.symmetric({Part::z, c, Part::gram, Part::gram, b, Part::gram});
    if (i == part.first) {
      stages.identity(Part::q, Part::z, on_diagonal(spec, a));
    } else {
      stages.symmetric({Part::t, 1.0f, Part::z, Part::q, a, Part::q});
      stages.swap(Part::t, Part::q);
    }
    if (i + 1 == part.end) continue;
    stages.symmetric({Part::t, 1.0f, Part::z, Part::gram, a, Part::gram});
    stages.symmetric({Part::gram, 1.0f, Part::z, Part::t, a, Part::t});
  }
}

template <typename Spec, typename Stages>
void gram_form(const Spec& spec, Stages& stages) {
  for (const GramPart& part : gram_parts(spec)) {
    stages.gram();
    gram_factor(spec, part, stages);
    stages.advance(Part::q, 0.0f);
  }
}

}  // namespace ebb::libmuon
