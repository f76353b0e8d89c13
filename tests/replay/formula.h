// The formula of a case in fp64, by its own numbers alone: nothing here knows libmuon.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/replay/case.h"

namespace ebb::replay {

struct NewtonSchulz {
  std::vector<Numbers> coefficients;  // a, b, c of each iteration
  double norm_factor = 1, eps = 0;
  bool clamp = false;
};
struct Parts {
  std::string kind;                  // "", "heads", "rows" or "qkv"
  std::vector<std::uint64_t> sizes;  // of heads: how many
  Numbers factors;                   // of each part's O; empty: 1
};
// Of O, one for each row, or for each place along the longer side.
struct SecondMoment {
  bool kept = false, always_rows = true, clamp = false;
  double beta = 0, eps = 0;
};
struct Formula {
  double lr = 0, beta = 0, decay = 0, scale = 1;
  bool ema = true, nesterov = true, flatten = false;
  std::string decay_kind;
  NewtonSchulz ns;
  Parts parts;
  SecondMoment second;
};
// Code::usage names a word that is not known.
Result<Formula> formula_of(const Fields& spec);

Numbers newton_schulz(const NewtonSchulz& ns, std::uint64_t rows, std::uint64_t cols, Numbers u);

// A parameter on its way.
class Witness {
 public:
  Witness(Formula formula, Shape shape, Numbers param)
      : formula_(std::move(formula)),
        shape_(std::move(shape)),
        param_(std::move(param)),
        momentum_(param_.size()) {}
  void step(const std::vector<float>& gradient);
  const Numbers& param() const { return param_; }
  const Numbers& momentum() const { return momentum_; }

 private:
  Numbers orthogonal(const Numbers& u);
  Numbers normalised(std::size_t block, std::size_t rows, std::size_t cols, Numbers o);

  const Formula formula_;
  const Shape shape_;
  Numbers param_, momentum_;
  std::map<std::size_t, Numbers> second_;  // by block, in the order of the parameter
};

struct AdamFormula {
  double lr = 0, beta1 = 0, beta2 = 0, eps = 0, decay = 0;
};
Result<AdamFormula> adam_formula_of(const Fields& spec);

class AdamWitness {
 public:
  AdamWitness(AdamFormula formula, Numbers param)
      : formula_(formula),
        param_(std::move(param)),
        first_(param_.size()),
        second_(param_.size()) {}
  void step(const std::vector<float>& gradient);
  const Numbers& param() const { return param_; }
  const Numbers& first() const { return first_; }
  const Numbers& second() const { return second_; }

 private:
  const AdamFormula formula_;
  std::uint64_t steps_ = 0;
  Numbers param_, first_, second_;
};

}  // namespace ebb::replay
