#include "plugins/cuda/newton_schulz.h"

#include <algorithm>
#include <array>
#include <utility>

#include "ebb/libmuon/kernels/forms.h"

namespace ebb::cuda {
namespace {

using libmuon::Form;
using libmuon::Part;
using libmuon::PlainMatrices;
using libmuon::Precision;
using libmuon::Rounding;
using libmuon::Sum;

constexpr std::uint64_t kAlign = 256;  // bytes: what cuBLASLt's fastest kernels ask for

// A batch's places in the workspace: for products, normalizers, sums of squares, then the parts.
class Places {
 public:
  explicit Places(const PlainMatrices& matrices) {
    const std::uint64_t m = std::min(matrices.rows(), matrices.cols);
    const std::uint64_t n = std::max(matrices.rows(), matrices.cols);
    const Precision kept = libmuon::kept_as(matrices.spec.precision);
    const std::uint64_t size = size_of(kept);
    normalizers_ = take(kProductWorkspace);
    sums_ = take(matrices.count * sizeof(Normalizer));
    std::uint64_t next = take(sums_of(matrices) * sizeof(double));
    const std::size_t parts = matrices.spec.form == Form::gram ? parts_.size() : 4;
    for (std::size_t i = 0; i < parts; ++i) {
      const std::uint64_t cols = static_cast<Part>(i) <= Part::y ? n : m;
      Batch& part = parts_[i];
      part = {.rows = m,
              .cols = cols,
              .ld = leading_of(cols),
              .count = matrices.count,
              .precision = kept};
      const std::uint64_t bytes = formats::align_up(m * part.ld * size, kAlign);
      part.step = bytes / size;
      offsets_[i] = next;
      next = take(bytes * matrices.count);
    }
  }
  std::uint64_t bytes() const { return bytes_; }
  Normalizer* normalizers(std::byte* workspace) const {
    return reinterpret_cast<Normalizer*>(workspace + normalizers_);
  }
  double* sums(std::byte* workspace) const { return reinterpret_cast<double*>(workspace + sums_); }
  std::array<Batch, 6> parts(std::byte* workspace) const {
    auto parts = parts_;
    for (std::size_t i = 0; i < parts.size(); ++i) parts[i].data = workspace + offsets_[i];
    return parts;
  }

 private:
  // The place behind so many bytes more.
  std::uint64_t take(std::uint64_t bytes) { return bytes_ += formats::align_up(bytes, kAlign); }

  std::uint64_t bytes_ = 0, normalizers_ = 0, sums_ = 0;
  std::array<Batch, 6> parts_{};
  std::array<std::uint64_t, 6> offsets_{};
};

// The stages of forms.h. Behind the first that fails nothing more is given to the stream.
class Stages {
 public:
  Stages(const Multiplier& multiplier, const PlainMatrices& matrices, std::byte* workspace,
         cudaStream_t stream, Why* why)
      : with_(multiplier),
        spec_(matrices.spec),
        own_(makes_symmetric(matrices)),
        workspace_(workspace),
        stream_(stream),
        why_(why),
        parts_(Places(matrices).parts(workspace)) {}

  void gram() {
    multiply({.left = at(Part::x),
              .right = at(Part::x),
              .from = at(Part::gram),
              .to = at(Part::gram),
              .as = Product::Right::transposed});
    if (!own_ && !library_mirrors_) mirror(Part::gram);
    mirrored_ = true;
  }
  // Separate roundings are the host's (newton_schulz_run.cpp), in the same places.
  void square(const Sum& sum) {
    const bool separate =
        libmuon::kept_as(spec_.precision) != Precision::fp32 && spec_.rounding != Rounding::fused;
    if (!separate) {
      const Part from = sum.beta != 0 ? sum.from : sum.to;
      return multiply({.left = at(sum.left),
                       .right = at(sum.right),
                       .from = at(from),
                       .to = at(sum.to),
                       .alpha = sum.alpha,
                       .beta = sum.beta});
    }
    Batch left = at(sum.left);
    if (sum.alpha != 1 && spec_.rounding == Rounding::each) {
      Batch scaled = at(Part::y);
      scaled.cols = left.cols;
      run(launch_scale(left, sum.alpha, scaled, stream_), "rounding a factor");
      left = scaled;
    }
    multiply({.left = left, .right = at(sum.right), .from = at(sum.to), .to = at(sum.to)});
    if (sum.alpha != 1 && spec_.rounding == Rounding::each_product_first)
      run(launch_scale(at(sum.to), sum.alpha, at(sum.to), stream_), "rounding a product");
    if (sum.beta != 0)
      run(launch_add_scaled(at(sum.from), sum.beta, at(sum.to), stream_), "rounding a sum");
  }
  // What rounding makes of it is symmetric in fp32 alone.
  void symmetric(const Sum& sum) {
    square(sum);
    if (sum.to == Part::gram) mirrored_ = false;
    if (spec_.precision == Precision::fp32) mirror(sum.to);
  }
  void mirror(Part part) { run(launch_mirror(at(part), stream_), "mirroring"); }
  void identity(Part to, Part from, float value) {
    run(launch_identity(at(from), value, at(to), stream_), "adding to a diagonal");
  }
  void advance(Part left, float beta, float alpha = 1.0f) {
    square({Part::y, alpha, left, Part::x, beta, Part::x});
    swap(Part::x, Part::y);
  }
  void swap(Part a, Part b) { std::swap(place(a), place(b)); }

  void run(cudaError_t error, const char* doing) {
    if (answer_ == Answer::done) answer_ = answer_of(error, doing, why_);
  }
  const Batch& at(Part part) { return place(part); }
  Answer answer() const { return answer_; }

 private:
  static bool makes_symmetric(const PlainMatrices& matrices) {
    return matrices.symmetric_from != 0 &&
           libmuon::kept_as(matrices.spec.precision) != Precision::fp32 &&
           std::min(matrices.rows(), matrices.cols) >= matrices.symmetric_from;
  }
  Batch& place(Part part) { return parts_[static_cast<std::size_t>(part)]; }
  // X X^T, or the square of a matrix that is symmetric to the bit.
  bool symmetric_to_the_bit(const Product& product) const {
    return product.left.data == product.right.data &&
           (product.as == Product::Right::transposed || mirrored_);
  }
  void multiply(Product product) {
    if (answer_ != Answer::done) return;
    if (spec_.precision == Precision::tf32) product.operands = Product::Operands::tf32;
    if (own_ && symmetric_to_the_bit(product))
      run(launch_symmetric({product.left, product.from, product.to, product.alpha, product.beta},
                           with_.processors, stream_),
          "a symmetric product");
    else
      answer_ = with_.products.multiply(product, workspace_, stream_, why_, &library_mirrors_);
  }

  const Multiplier& with_;
  const libmuon::PlainNewtonSchulz& spec_;
  const bool own_;
  std::byte* const workspace_;
  const cudaStream_t stream_;
  Why* const why_;
  std::array<Batch, 6> parts_;
  bool mirrored_ = false;         // the Gram matrix is symmetric to the bit
  bool library_mirrors_ = false;  // the library's last product is known to be
  Answer answer_ = Answer::done;
};

Answer newton_schulz_at_once(const Multiplier& multiplier, const PlainMatrices& matrices,
                             std::byte* workspace, cudaStream_t stream, Why* why) {
  const Places places(matrices);
  Normalizer* const normalizers = places.normalizers(workspace);
  Stages stages(multiplier, matrices, workspace, stream, why);
  stages.run(launch_norms(matrices, places.sums(workspace), normalizers, stream), "norms");
  stages.run(launch_load(matrices, normalizers, stages.at(Part::x), stream), "loading");
  if (matrices.spec.form == Form::gram)
    libmuon::gram_form(matrices.spec, stages);
  else
    libmuon::standard_form(matrices.spec, stages);
  stages.run(launch_store(matrices, normalizers, stages.at(Part::x), stream), "storing");
  return stages.answer();
}

}  // namespace

PlainMatrices part_of(const PlainMatrices& matrices, std::uint64_t first) {
  PlainMatrices part = matrices;
  part.u += first * matrices.span();
  part.number += static_cast<std::uint32_t>(first);
  part.count = std::min(kMostAtOnce, matrices.count - first);
  return part;
}

std::uint64_t newton_schulz_bytes(const PlainMatrices& matrices) {
  return Places(part_of(matrices, 0)).bytes();
}

Answer newton_schulz(const Multiplier& multiplier, const PlainMatrices& matrices,
                     std::byte* workspace, cudaStream_t stream, Why* why) {
  for (std::uint64_t first = 0; first < matrices.count; first += kMostAtOnce) {
    const Answer answer =
        newton_schulz_at_once(multiplier, part_of(matrices, first), workspace, stream, why);
    if (answer != Answer::done) return answer;
  }
  return Answer::done;
}

}  // namespace ebb::cuda
