// Symmetric products, second moments: by the textbook.
#include <atomic>
#include <cmath>
#include <vector>

#include "ebb/formats/core/check.h"
#include "plugins/cuda/launch.h"
#include "tests/libmuon/cuda/stub.h"
#include "tests/libmuon/cuda/stub_control.h"
#include "tests/libmuon/cuda/stub_numbers.h"

namespace {
std::atomic<std::uint64_t> made = 0;
}  // namespace

extern "C" std::uint64_t ebb_stub_symmetric_products() { return made; }

namespace ebb::cuda {
namespace {

using libmuon::PlainNormalise;
using libmuon::Precision;
using stub::Numbers;

Numbers matrix_of(const Batch& batch, std::uint64_t number) {
  auto* const first = static_cast<std::byte*>(batch.data) + number * batch.step * 2;
  EBB_CHECK(reinterpret_cast<std::uintptr_t>(first) % 16 == 0 && batch.ld % 16 == 0);
  return {stub::open(first, ((batch.rows - 1) * batch.ld + batch.cols) * 2), batch.precision};
}

void multiply(const Symmetric& product, std::uint64_t number) {
  const Numbers left = matrix_of(product.left, number), to = matrix_of(product.to, number);
  for (std::uint64_t row = 0; row < product.to.rows; ++row)
    for (std::uint64_t col = 0; col <= row; ++col) {
      float sum = 0;
      for (std::uint64_t k = 0; k < product.left.cols; ++k)
        sum += left.get(row * product.left.ld + k) * left.get(col * product.left.ld + k);
      float value = product.alpha * sum;
      if (product.beta != 0)
        value += product.beta * matrix_of(product.from, number).get(row * product.from.ld + col);
      to.put(row * product.to.ld + col, value);
      to.put(col * product.to.ld + row, value);
    }
}

std::uint64_t place(const libmuon::PlainMatrices& of, std::uint64_t row) {
  return row / of.run * of.stride + row % of.run;
}

// Of one matrix; `o` and `v` are its own.
void normalise(const PlainNormalise& range, float* o, float* v, std::uint64_t number) {
  const auto& of = range.o;
  const std::uint64_t rows = of.rows(), cols = of.cols;
  const bool by_rows = range.of_rows != 0;
  std::vector<double> sums(by_rows ? rows : cols), steps(sums.size());
  for (std::uint64_t row = 0; row < rows; ++row) {
    double lanes[16] = {};
    for (std::uint64_t col = 0; col < cols; ++col) {
      const auto value = static_cast<double>(o[place(of, row) * cols + col]);
      (by_rows ? lanes[col % 16] : sums[col]) += value * value;
    }
    for (const double lane : lanes)
      if (by_rows) sums[row] += lane;
  }
  double before = 0, behind = 0;
  for (std::uint64_t i = 0; i < sums.size(); ++i) {
    float& moment = v[by_rows ? place(of, i) : i];
    moment = libmuon::next_moment(range.factors, sums[i],
                                  static_cast<double>(by_rows ? cols : rows), moment);
    const double root = std::sqrt(libmuon::under_root(range.factors, static_cast<double>(moment)));
    steps[i] = libmuon::moment_step(range.factors, root);
    before += sums[i];
    behind += sums[i] * steps[i] * steps[i];
  }
  const double ratio = libmuon::kept_norm(range.factors, std::sqrt(before), std::sqrt(behind));
  for (std::uint64_t row = 0; row < rows; ++row)
    for (std::uint64_t col = 0; col < cols; ++col) {
      float& value = o[place(of, row) * cols + col];
      const float factor =
          stub::round_to(of.spec.precision, static_cast<float>(steps[by_rows ? row : col] * ratio));
      value =
          stub::round_to(of.spec.handed_back, stub::round_to(of.spec.precision, value * factor));
      if (!std::isfinite(value) && of.spoiled != nullptr)
        *reinterpret_cast<std::uint32_t*>(stub::open(of.spoiled, sizeof(std::uint32_t))) =
            of.number + static_cast<std::uint32_t>(number);
    }
}

}  // namespace

cudaError_t launch_symmetric(const Symmetric& product, unsigned processors, cudaStream_t stream) {
  EBB_CHECK(product.to.precision != Precision::fp32 && processors == 4);
  if (stub::fails("launch_symmetric")) return cudaErrorUnknown;
  ++made;
  const auto [faster_from, wrong] = stub::symmetric();
  stub::spend(product.to.rows >= faster_from ? 0.5 : 2);
  const std::uint64_t rows = product.to.rows;
  if (wrong) return cudaMemsetAsync(product.to.data, 1, 2 * rows * product.to.ld, stream);
  if (stub::too_large(rows * rows * product.left.cols * product.to.count)) return cudaSuccess;
  stub::enqueue(stream, [=] {
    for (std::uint64_t i = 0; i < product.to.count; ++i) multiply(product, i);
  });
  return cudaSuccess;
}

std::uint64_t sides_of(const PlainNormalise& range) {
  return (range.of_rows != 0 ? range.o.rows() : range.o.cols) * range.o.count;
}

cudaError_t launch_normalise(const PlainNormalise& range, double* sums, float* factors,
                             cudaStream_t stream) {
  if (stub::fails("launch_normalise")) return cudaErrorUnknown;
  stub::enqueue(stream, [=] {
    stub::open(sums, sides_of(range) * sizeof(double));
    stub::open(factors, sides_of(range) * sizeof(float));
    const std::uint64_t span = range.o.span(), each = range.v.elems / range.o.count;
    for (std::uint64_t i = 0; i < range.o.count; ++i)
      normalise(range,
                reinterpret_cast<float*>(stub::open(range.o.u + i * span, span * sizeof(float))),
                reinterpret_cast<float*>(
                    stub::open(static_cast<float*>(range.v.data) + i * each, each * sizeof(float))),
                i);
  });
  return cudaSuccess;
}

}  // namespace ebb::cuda
