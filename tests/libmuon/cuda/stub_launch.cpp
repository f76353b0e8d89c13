// Launches: the same work by the host's functions, element by element, when the stream comes to it.
#include <algorithm>
#include <cmath>
#include <vector>

#include "ebb/formats/core/check.h"
#include "ebb/formats/core/int8_blocks.h"
#include "ebb/formats/core/units.h"
#include "ebb/libmuon/kernels/kernels.h"
#include "plugins/cuda/launch.h"
#include "tests/libmuon/cuda/stub.h"
#include "tests/libmuon/cuda/stub_numbers.h"

namespace ebb::cuda {
namespace {

using libmuon::Momentum;
using libmuon::PlainBuffer;
using libmuon::PlainMatrices;
using libmuon::Precision;
using stub::Numbers;
using stub::round_to;

constexpr std::uint64_t kNormChunk = 65536;

cudaError_t later(cudaStream_t stream, const char* name, std::function<void()> work) {
  if (stub::fails(name)) return cudaErrorUnknown;
  stub::enqueue(stream, std::move(work));
  return cudaSuccess;
}

// A buffer that is fp32, bf16 or fp16; an empty one is written to nobody.
Numbers numbers(const PlainBuffer& buffer) {
  EBB_CHECK(buffer.dtype == DType::f32 || buffer.dtype == DType::bf16 ||
            buffer.dtype == DType::f16);
  const std::uint64_t size = buffer.dtype == DType::f32 ? 4 : 2;
  return {stub::open(buffer.data, buffer.elems * size), size == 4 ? Precision::fp32
                                                        : buffer.dtype == DType::bf16
                                                            ? Precision::bf16
                                                            : Precision::fp16};
}
std::span<float> floats(const PlainBuffer& buffer) {
  EBB_CHECK(buffer.dtype == DType::f32);
  return {reinterpret_cast<float*>(stub::open(buffer.data, buffer.elems * 4)), buffer.elems};
}
void put(const PlainBuffer& out, std::span<const float> w) {
  if (out.elems == 0) return;
  EBB_CHECK(out.elems == w.size());
  const Numbers to = numbers(out);
  for (std::uint64_t i = 0; i < w.size(); ++i) to.put(i, w[i]);
}

// Where there is no gradient, zeros.
std::vector<float> gradient(const PlainBuffer& g, std::uint64_t elems) {
  std::vector<float> wide(elems);
  EBB_CHECK(g.elems == elems || g.elems == 0);
  if (g.elems == 0) return wide;
  const Numbers from = numbers(g);
  for (std::uint64_t i = 0; i < elems; ++i) wide[i] = from.get(i);
  return wide;
}

template <Momentum kForm, bool kNesterov, typename Stored>
void take(const libmuon::PlainPrepare& range, Stored* m) {
  const auto g = gradient(range.g, range.m.elems);
  const Numbers u = numbers(range.u);
  if (range.decay.elems == 0) {
    for (std::uint64_t i = 0; i < g.size(); ++i)
      u.put(i, libmuon::take_momentum<kForm, kNesterov>(range.factors, g[i], m[i]));
    return;
  }
  const auto decay = floats(range.decay);
  for (std::uint64_t i = 0; i < g.size(); ++i)
    u.put(i, libmuon::take_decayed<kForm, kNesterov>(range.factors, g[i], decay[i], m[i]));
}

template <typename Stored>
void prepare(const libmuon::PlainPrepare& range, Stored* m) {
  const bool ema = range.form == Momentum::ema;
  if (ema && range.nesterov != 0) take<Momentum::ema, true>(range, m);
  if (ema && range.nesterov == 0) take<Momentum::ema, false>(range, m);
  if (!ema && range.nesterov != 0) take<Momentum::sum, true>(range, m);
  if (!ema && range.nesterov == 0) take<Momentum::sum, false>(range, m);
}

float update(const libmuon::PlainPrepare& range, float g, float m) {
  const bool ema = range.form == Momentum::ema;
  if (range.nesterov == 0) return m;
  return ema ? libmuon::update_of<Momentum::ema, true>(range.factors, g, m)
             : libmuon::update_of<Momentum::sum, true>(range.factors, g, m);
}

template <Precision kWeights>
float applied(const libmuon::PlainFinish& range, float o, float w) {
  if (range.step == Precision::bf16)
    return libmuon::applied<Precision::bf16, kWeights>(range.factors, o, w);
  if (range.step == Precision::fp16)
    return libmuon::applied<Precision::fp16, kWeights>(range.factors, o, w);
  return libmuon::applied<Precision::fp32, kWeights>(range.factors, o, w);
}

}  // namespace

cudaError_t launch_look(const libmuon::PlainLook& range, libmuon::Look* found,
                        cudaStream_t stream) {
  return later(stream, "launch_look", [=] {
    std::vector<float> wide(range.g.elems);
    const Numbers g = numbers(range.g);
    for (std::uint64_t i = 0; i < wide.size(); ++i) wide[i] = g.get(i);
    auto& look = *reinterpret_cast<libmuon::Look*>(stub::open(found, sizeof(libmuon::Look)));
    const double largest = static_cast<double>(libmuon::largest_magnitude(wide)) / range.limit;
    look.largest = std::max(look.largest, largest);
    if (range.in_norm == 0) return;
    libmuon::ExactSum sum{.limbs = look.squares};
    sum.add(wide);
    look.squares = sum.limbs;
  });
}

cudaError_t launch_add(const libmuon::PlainAdd& range, cudaStream_t stream) {
  return later(stream, "launch_add", [=] {
    const auto sum = floats(range.sum);
    const Numbers g = numbers(range.g);
    for (std::uint64_t i = 0; i < sum.size(); ++i)
      sum[i] = range.first != 0 ? g.get(i) : sum[i] + g.get(i);
  });
}

cudaError_t launch_decay(const libmuon::PlainDecay& range, cudaStream_t stream) {
  return later(stream, "launch_decay", [=] {
    const auto w = floats(range.w), u = floats(range.u);
    EBB_CHECK(w.size() == u.size());
    for (std::uint64_t i = 0; i < u.size(); ++i) u[i] = range.factor * w[i];
  });
}

cudaError_t launch_prepare(const libmuon::PlainPrepare& range, cudaStream_t stream) {
  return later(stream, "launch_prepare", [=] {
    EBB_CHECK(range.m.elems == range.u.elems);
    std::byte* const m = numbers(range.m).data;
    if (range.m.dtype == DType::bf16)
      prepare(range, reinterpret_cast<std::uint16_t*>(m));
    else
      prepare(range, reinterpret_cast<float*>(m));
  });
}

cudaError_t launch_prepare_blocks(const libmuon::PlainPrepare& range, cudaStream_t stream) {
  return later(stream, "launch_prepare", [=] {
    EBB_CHECK(range.m.elems == range.u.elems && range.m.dtype == DType::i8);
    auto* const codes = reinterpret_cast<std::int8_t*>(stub::open(range.m.data, range.m.elems));
    const auto scales = floats(range.scales);
    std::vector<float> m(range.m.elems);
    formats::from_int8_blocks({codes, m.size()}, scales, range.block, 0, m);
    // What is kept is rounded before U is made of it: of what does not change, and of no decay.
    std::vector<float> g = gradient(range.g, m.size());
    const std::span<const float> decay =
        range.decay.elems == 0 ? std::span<const float>() : floats(range.decay);
    for (std::uint64_t i = 0; i < m.size(); ++i) {
      g[i] = range.factors.scale * g[i] + (decay.empty() ? -0.0f : decay[i]);
      m[i] = range.form == Momentum::ema
                 ? libmuon::next_momentum<Momentum::ema>(range.factors, g[i], m[i])
                 : libmuon::next_momentum<Momentum::sum>(range.factors, g[i], m[i]);
    }
    formats::to_int8_blocks(m, range.block, {codes, m.size()}, scales);
    formats::from_int8_blocks({codes, m.size()}, scales, range.block, 0, m);
    const Numbers u = numbers(range.u);
    for (std::uint64_t i = 0; i < m.size(); ++i) u.put(i, update(range, g[i], m[i]));
  });
}

cudaError_t launch_finish(const libmuon::PlainFinish& range, cudaStream_t stream) {
  return later(stream, "launch_finish", [=] {
    const Numbers o = numbers(range.o);
    std::vector<float> none(range.w.elems == 0 ? range.o.elems : 0, -0.0f);
    const auto w = none.empty() ? floats(range.w) : std::span(none);
    EBB_CHECK(range.o.elems == w.size());
    for (std::uint64_t i = 0; i < w.size(); ++i)
      w[i] = range.weights == Precision::bf16 ? applied<Precision::bf16>(range, o.get(i), w[i])
                                              : applied<Precision::fp32>(range, o.get(i), w[i]);
    put(range.out, w);
  });
}

cudaError_t launch_hand_out(const libmuon::PlainOut& range, cudaStream_t stream) {
  return later(stream, "launch_hand_out", [=] { put(range.out, floats(range.w)); });
}

cudaError_t launch_convert(const PlainBuffer& from, const PlainBuffer& to, cudaStream_t stream) {
  return later(stream, "launch_convert", [=] {
    EBB_CHECK(from.elems == to.elems);
    const Numbers source = numbers(from), target = numbers(to);
    for (std::uint64_t i = 0; i < to.elems; ++i) target.put(i, source.get(i));
  });
}

cudaError_t launch_adamw(const libmuon::PlainAdam& range, cudaStream_t stream) {
  return later(stream, "launch_adamw", [=] {
    const auto w = floats(range.w), m = floats(range.exp_avg), v = floats(range.exp_avg_sq);
    const auto g = gradient(range.g, w.size());
    for (std::uint64_t i = 0; i < w.size(); ++i) {
      const float scaled = range.factors.scale * g[i];
      m[i] = adam_first(range.factors, scaled, m[i]);
      v[i] = adam_second(range.factors, scaled, v[i]);
      w[i] = adam_weight(range.factors, w[i], m[i], std::sqrt(v[i]));
    }
    put(range.out, w);
  });
}

// --- Newton-Schulz ---

namespace {

float* matrix_of(const PlainMatrices& of, std::uint64_t number) {
  return reinterpret_cast<float*>(stub::open(of.u + number * of.span(), of.span() * 4));
}
std::uint64_t index_of(const PlainMatrices& of, std::uint64_t row, std::uint64_t col) {
  return (row / of.run * of.stride + row % of.run) * of.cols + col;
}
void tell(const PlainMatrices& of, std::uint64_t matrix) {
  if (of.spoiled == nullptr) return;
  *reinterpret_cast<std::uint32_t*>(stub::open(of.spoiled, sizeof(std::uint32_t))) =
      of.number + static_cast<std::uint32_t>(matrix);
}
float taken(const PlainMatrices& of, float value) {
  return round_to(libmuon::norm_precision(of.spec), round_to(of.spec.handed, value));
}
Numbers of_batch(const Batch& batch, std::uint64_t number) {
  const std::uint64_t size = batch.precision == Precision::fp32 ? 4 : 2;
  return {stub::open(static_cast<std::byte*>(batch.data) + number * batch.step * size,
                     ((batch.rows - 1) * batch.ld + batch.cols) * size),
          batch.precision};
}

// body(numbers of `from`, index there, numbers of `to`, index there, row, col).
template <typename Body>
void for_places(const Batch& from, const Batch& to, const Body& body) {
  for (std::uint64_t number = 0; number < from.count; ++number) {
    const Numbers source = of_batch(from, number), target = of_batch(to, number);
    for (std::uint64_t row = 0; row < from.rows; ++row)
      for (std::uint64_t col = 0; col < from.cols; ++col)
        body(source, row * from.ld + col, target, row * to.ld + col, row, col);
  }
}

}  // namespace

std::uint64_t sums_of(const PlainMatrices& of) {
  return formats::div_ceil(of.run * of.cols, kNormChunk) * of.runs * of.count;
}

// By the order of the host: lanes of sixteen, chunks ascending.
cudaError_t launch_norms(const PlainMatrices& of, double* sums, Normalizer* normalizers,
                         cudaStream_t stream) {
  return later(stream, "launch_norms", [=] {
    stub::open(sums, sums_of(of) * sizeof(double));
    for (std::uint64_t number = 0; number < of.count; ++number) {
      const float* const u = matrix_of(of, number);
      double total = 0;
      for (std::uint64_t run = 0; run < of.runs; ++run)
        for (std::uint64_t first = 0; first < of.run * of.cols; first += kNormChunk) {
          double lanes[16] = {};
          const std::uint64_t count = std::min(kNormChunk, of.run * of.cols - first);
          for (std::uint64_t i = 0; i < count; ++i) {
            const auto value =
                static_cast<double>(taken(of, u[run * of.stride * of.cols + first + i]));
            lanes[i % 16] += value * value;
          }
          double sum = 0;
          for (const double lane : lanes) sum += lane;
          total += sum;
        }
      const double norm = std::sqrt(total);
      auto* const to =
          reinterpret_cast<Normalizer*>(stub::open(normalizers + number, sizeof(Normalizer)));
      *to = {libmuon::normalizer(of.spec, norm), norm != 0 && std::isfinite(norm) ? 1u : 0u};
      if (!std::isfinite(norm)) tell(of, number);
    }
  });
}

cudaError_t launch_load(const PlainMatrices& of, const Normalizer* normalizers, const Batch& x,
                        cudaStream_t stream) {
  return later(stream, "launch_load", [=] {
    const bool tall = of.rows() > of.cols;
    for (std::uint64_t number = 0; number < of.count; ++number) {
      const auto by = *reinterpret_cast<const Normalizer*>(
          stub::open(normalizers + number, sizeof(Normalizer)));
      const float* const u = matrix_of(of, number);
      const Numbers to = of_batch(x, number);
      for (std::uint64_t row = 0; row < of.rows(); ++row)
        for (std::uint64_t col = 0; col < of.cols; ++col) {
          const double value = static_cast<double>(taken(of, u[index_of(of, row, col)]));
          to.put(tall ? col * x.ld + row : row * x.ld + col,
                 by.alive != 0 ? round_to(libmuon::norm_precision(of.spec),
                                          static_cast<float>(value * by.factor))
                               : 0.0f);
        }
    }
  });
}

cudaError_t launch_store(const PlainMatrices& of, const Normalizer* normalizers, const Batch& x,
                         cudaStream_t stream) {
  return later(stream, "launch_store", [=] {
    const bool tall = of.rows() > of.cols;
    for (std::uint64_t number = 0; number < of.count; ++number) {
      const auto by = *reinterpret_cast<const Normalizer*>(
          stub::open(normalizers + number, sizeof(Normalizer)));
      float* const u = matrix_of(of, number);
      const Numbers from = of_batch(x, number);
      for (std::uint64_t row = 0; row < of.rows(); ++row)
        for (std::uint64_t col = 0; col < of.cols; ++col) {
          const float value = from.get(tall ? col * x.ld + row : row * x.ld + col);
          const float handed = by.alive != 0 ? round_to(of.spec.handed_back, value) : 0.0f;
          if (!std::isfinite(handed)) tell(of, number);
          u[index_of(of, row, col)] = handed;
        }
    }
  });
}

cudaError_t launch_scale(const Batch& from, float factor, const Batch& to, cudaStream_t stream) {
  return later(stream, "launch_scale", [=] {
    for_places(from, to, [&](Numbers a, auto i, Numbers b, auto j, auto, auto) {
      b.put(j, factor * a.get(i));
    });
  });
}

cudaError_t launch_add_scaled(const Batch& from, float factor, const Batch& to,
                              cudaStream_t stream) {
  return later(stream, "launch_add_scaled", [=] {
    for_places(from, to, [&](Numbers a, auto i, Numbers b, auto j, auto, auto) {
      b.put(j, b.get(j) + round_to(from.precision, factor * a.get(i)));
    });
  });
}

cudaError_t launch_identity(const Batch& from, float value, const Batch& to, cudaStream_t stream) {
  return later(stream, "launch_identity", [=] {
    for_places(from, to, [&](Numbers a, auto i, Numbers b, auto j, auto row, auto col) {
      b.put(j, row == col ? a.get(i) + value : a.get(i));
    });
  });
}

cudaError_t launch_mirror(const Batch& of, cudaStream_t stream) {
  if (stub::too_large(of.rows * of.rows * of.cols * of.count)) return cudaSuccess;
  return later(stream, "launch_mirror", [=] {
    for_places(of, of, [&](Numbers a, auto i, Numbers b, auto, auto row, auto col) {
      if (row > col) b.put(col * of.ld + row, a.get(i));
    });
  });
}

}  // namespace ebb::cuda
