// The table of kernels that a plugin for a device brings (libswap/device/plugin.h), and what makes
// an Accelerator of it. Everything in a table is plain: addresses in the device's memory, numbers
// that a spec was made into (factors.h), lists that are borrowed until the call returns.
#pragma once

#include <cstdint>
#include <memory>

#include "ebb/formats/core/dtype.h"
#include "ebb/libmuon/kernels/element.h"
#include "ebb/libmuon/kernels/table.h"
#include "ebb/libmuon/spec/spec.h"
#include "ebb/libswap/device/plugin.h"
#include "ebb/libswap/device/plugin_device.h"

namespace ebb::libmuon {

// As table.h has them.
struct PlainBuffer {
  void* data = nullptr;
  std::uint64_t elems = 0;
  DType dtype = DType::u8;
  bool operator==(const PlainBuffer&) const = default;
};
struct PlainLook {
  PlainBuffer g;
  double limit = 1;
  std::uint32_t in_norm = 1;
};
struct PlainAdd {
  PlainBuffer g, sum;
  std::uint32_t first = 0;
};
struct PlainDecay {
  float factor = 0;  // u <- factor w
  PlainBuffer w, u;
};
struct PlainPrepare {
  MomentumFactors factors;
  Momentum form = Momentum::ema;
  std::uint32_t nesterov = 1;
  PlainBuffer g, m, u;
  PlainBuffer decay;   // what is added to the scaled gradient, maybe the place of u; or nothing
  PlainBuffer scales;  // of an m of i8: fp32, one for each `block` elements from the first on
  std::uint64_t block = 1;
};
struct PlainFinish {
  ApplyFactors factors;
  Precision step = Precision::fp32, weights = Precision::fp32;  // applied()
  PlainBuffer o, w, out;
  PlainBuffer high;  // of a w of low halves, u16: maybe the place of out
};
struct PlainOut {
  PlainBuffer w, out;
};
struct PlainTake {
  PlainBuffer given, w;
};
struct PlainAdam {
  AdamFactors factors;
  PlainBuffer g, w, exp_avg, exp_avg_sq, out;
  PlainBuffer high;
};

template <typename T>
struct Few {
  T items[kMaxIterations];
  std::uint64_t count = 0;
  const T* begin() const { return items; }
  const T* end() const { return items + count; }
  std::uint64_t size() const { return count; }
  const T& operator[](std::uint64_t i) const { return items[i]; }
  bool operator==(const Few&) const = default;
};
// Newton-Schulz as forms.h and rounding.h read it. A square matrix takes the standard form.
struct PlainNewtonSchulz {
  Few<Coefficients> iterations;
  Few<std::uint32_t> restarts;
  double eps = 0, norm_factor = 1;
  EpsRule eps_rule = EpsRule::add;
  NormOf norm_of = NormOf::update;
  Precision precision = Precision::fp32, handed = Precision::fp32, handed_back = Precision::fp32;
  Rounding rounding = Rounding::fused;
  Form form = Form::standard;
  bool operator==(const PlainNewtonSchulz&) const = default;
};
// `count` matrices of such a Block, span elements apart.
struct PlainMatrices {
  PlainNewtonSchulz spec;
  std::uint64_t cols = 0, run = 0, runs = 1, stride = 0, count = 1;
  float* u = nullptr;
  // Where the i-th is not finite: `number` + i is written there. Null: nobody asks.
  std::uint32_t* non_finite = nullptr;
  std::uint32_t number = 1;
  // All of them, narrower: u is first widened from `in`, and rounded to `out` at last, maybe the
  // same place; or nothing.
  PlainBuffer in, out;
  // Products that are symmetric are the device's own from so many rows on; 0: none.
  std::uint64_t symmetric_from = 0;

  constexpr std::uint64_t rows() const { return run * runs; }
  constexpr std::uint64_t span() const { return ((runs - 1) * stride + run) * cols; }
  bool operator==(const PlainMatrices&) const = default;
};

// Matrices that have become O, and their second moments `v`, one matrix' behind the other's.
struct PlainNormalise {
  PlainMatrices o;  // all but `in`
  PlainBuffer v;
  MomentFactors factors;
  std::uint32_t of_rows = 1;
};

inline constexpr std::uint32_t kKernelsTableVersion = 6;

// `stream`: of the device's table. Calls give it work and return.
struct KernelsTable {
  using Answer = libswap::PluginAnswer;
  using Why = libswap::PluginWhy;

  libswap::TableHead head;
  Answer (*open)(void* device, void** kernels, Why* why);
  void (*close)(void* kernels);
  // What its bits depend on beside values and shapes: "cuBLASLt 13.1.1 NVIDIA H200".
  void (*fingerprint)(void* device, char* text, std::uint64_t size);
  std::uint64_t (*workspace_bytes)(const PlainMatrices* matrices);
  // `found`: a Look in the device's memory.
  Answer (*look)(void* kernels, void* stream, const PlainLook* ranges, std::uint64_t count,
                 void* found, Why* why);
  Answer (*add)(void* kernels, void* stream, const PlainAdd* ranges, std::uint64_t count, Why* why);
  Answer (*decay)(void* kernels, void* stream, const PlainDecay* ranges, std::uint64_t count,
                  Why* why);
  Answer (*prepare)(void* kernels, void* stream, const PlainPrepare* ranges, std::uint64_t count,
                    Why* why);
  Answer (*finish)(void* kernels, void* stream, const PlainFinish* ranges, std::uint64_t count,
                   Why* why);
  Answer (*hand_out)(void* kernels, void* stream, const PlainOut* ranges, std::uint64_t count,
                     Why* why);
  Answer (*take)(void* kernels, void* stream, const PlainTake* ranges, std::uint64_t count,
                 Why* why);
  Answer (*adamw)(void* kernels, void* stream, const PlainAdam* ranges, std::uint64_t count,
                  Why* why);
  Answer (*normalise)(void* kernels, void* stream, const PlainNormalise* ranges,
                      std::uint64_t count, Why* why);
  // One call at a time.
  Answer (*orthogonalize)(void* kernels, void* stream, const PlainMatrices* matrices,
                          void* workspace, std::uint64_t bytes, Why* why);
  // From how many rows on (PlainMatrices::symmetric_from) the device's own symmetric products are
  // faster than the library's, and right; 0: nowhere, and `why` may say so. Waits, some 100 ms.
  Answer (*measure)(void* kernels, std::uint64_t* symmetric_from, Why* why);
  // Whether it has such products.
  std::uint32_t (*has_symmetric)(void* device);
};

// Computes steps on `device`, which is borrowed. Code::unsupported where its plugin's table is of
// another version.
Result<std::unique_ptr<Accelerator>> make_plugin_accelerator(libswap::PluginDevice& device);

}  // namespace ebb::libmuon
