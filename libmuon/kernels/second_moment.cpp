// O by its second moments, as NorMuon has it: sums of squares along one side of the matrix, their
// moving averages, and O divided by the roots of those with its Frobenius norm kept. Sums and
// factors are fp64's, each in one order: bits do not depend on how the pool cuts the work.
#include <algorithm>
#include <cmath>
#include <vector>

#include "ebb/libmuon/kernels/factors.h"
#include "ebb/libmuon/kernels/kernels.h"
#include "ebb/libmuon/kernels/newton_schulz_run.h"
#include "ebb/libmuon/kernels/rounding.h"

namespace ebb::libmuon {
namespace {

constexpr std::uint64_t kJobRows = 64, kJobCols = 256;

EBB_CLONES void add_squares_of_row(const float* __restrict row, std::uint64_t count,
                                   double* __restrict sums) {
  for (std::uint64_t i = 0; i < count; ++i)
    sums[i] += static_cast<double>(row[i]) * static_cast<double>(row[i]);
}

EBB_CLONES void scale_by_one(float factor, std::uint64_t count, float* row) {
  for (std::uint64_t i = 0; i < count; ++i) row[i] *= factor;
}

EBB_CLONES void scale_by_each(const float* __restrict factors, std::uint64_t count,
                              float* __restrict row) {
  for (std::uint64_t i = 0; i < count; ++i) row[i] *= factors[i];
}

class Normalising {
 public:
  Normalising(const MuonSpec& spec, const Block& block, std::span<float> o, std::span<float> v,
              libswap::Pool& pool, NonFinite non_finite)
      : spec_(spec),
        block_(block),
        of_rows_(moments_of_rows(spec, block)),
        o_(o),
        v_(v),
        pool_(pool),
        non_finite_(non_finite),
        sums_(of_rows_ ? block.rows() : block.cols),
        factors_(sums_.size()) {
    EBB_CHECK(o.size() == block.span());
    EBB_CHECK(v.size() == (of_rows_ ? block.span() / block.cols : block.cols));
  }

  void run() {
    if (of_rows_)
      each_run_of(block_.rows(), kJobRows,
                  [this](std::uint64_t i) { sums_[i] = sum_of_squares(row(i), block_.cols); });
    else
      pool_.run(formats::div_ceil(block_.cols, kJobCols), [this](std::size_t job) {
        const std::uint64_t first = job * kJobCols, count = std::min(kJobCols, block_.cols - first);
        for (std::uint64_t i = 0; i < block_.rows(); ++i)
          add_squares_of_row(row(i) + first, count, sums_.data() + first);
      });
    decide();
    each_run_of(block_.rows(), kJobRows, [this](std::uint64_t i) {
      if (of_rows_)
        scale_by_one(factors_[i], block_.cols, row(i));
      else
        scale_by_each(factors_.data(), block_.cols, row(i));
      round_all(kept_as(spec_.precision), {row(i), block_.cols});
      round_all(handed_back(spec_), {row(i), block_.cols});
      if (!std::isfinite(largest_magnitude({row(i), block_.cols}))) non_finite_.tell();
    });
  }

 private:
  std::uint64_t place(std::uint64_t row) const {
    return row / block_.run * block_.stride + row % block_.run;
  }
  float* row(std::uint64_t i) { return o_.data() + place(i) * block_.cols; }

  template <typename Job>
  void each_run_of(std::uint64_t count, std::uint64_t a_job, const Job& job) {
    pool_.run(formats::div_ceil(count, a_job), [&](std::size_t i) {
      const std::uint64_t end = std::min(count, (i + 1) * a_job);
      for (std::uint64_t one = i * a_job; one < end; ++one) job(one);
    });
  }

  // The new moments, and what each row or column is multiplied by.
  void decide() {
    const auto along = static_cast<double>(of_rows_ ? block_.cols : block_.rows());
    const MomentFactors factors = moment_factors(spec_);
    std::vector<double> steps(sums_.size());
    double before = 0, behind = 0;
    for (std::uint64_t i = 0; i < sums_.size(); ++i) {
      float& v = v_[of_rows_ ? place(i) : i];
      v = next_moment(factors, sums_[i], along, v);
      steps[i] = moment_step(factors, std::sqrt(under_root(factors, static_cast<double>(v))));
      before += sums_[i];
      behind += sums_[i] * steps[i] * steps[i];
    }
    const double ratio = kept_norm(factors, std::sqrt(before), std::sqrt(behind));
    for (std::uint64_t i = 0; i < sums_.size(); ++i)
      factors_[i] = static_cast<float>(steps[i] * ratio);
    round_all(kept_as(spec_.precision), factors_);
  }

  const MuonSpec& spec_;
  const Block& block_;
  const bool of_rows_;
  const std::span<float> o_, v_;
  libswap::Pool& pool_;
  const NonFinite non_finite_;
  std::vector<double> sums_;
  std::vector<float> factors_;
};

}  // namespace

void normalise(const MuonSpec& spec, const Block& block, std::span<float> o, std::span<float> v,
               libswap::Pool& pool, NonFinite non_finite) {
  Normalising(spec, block, o, v, pool, non_finite).run();
}

}  // namespace ebb::libmuon
