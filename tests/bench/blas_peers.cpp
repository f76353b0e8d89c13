#include "tests/bench/blas_peers.h"

#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace ebb::bench {
namespace {

// C = alpha A op(B) + beta C, row-major, packed.
struct Product {
  std::int64_t m, n, k;
  float alpha;
  const float *a, *b;
  bool b_transposed;
  float beta;
  float* c;
};

using OneDnnSgemm = int (*)(char, char, std::int64_t, std::int64_t, std::int64_t, float,
                            const float*, std::int64_t, const float*, std::int64_t, float, float*,
                            std::int64_t);
using CblasSgemm = void (*)(int, int, int, int, int, int, float, const float*, int, const float*,
                            int, float, float*, int);

constexpr const char *kOneDnn = "libdnnl.so.2", *kOpenBlas = "libopenblas.so.0",
                     *kOpenMp = "libgomp.so.1";

// Null: the library is not installed.
template <typename Function>
Function function_of(const char* library, const char* name) {
  void* const handle = ::dlopen(library, RTLD_NOW | RTLD_LOCAL);
  return handle == nullptr ? nullptr : reinterpret_cast<Function>(::dlsym(handle, name));
}
Error not_installed(const char* library) {
  return Error{Code::unsupported, std::string(library) + " is not installed"};
}

Result<> multiply(Blas blas, const Product& p) {
  const std::int64_t ldb = p.b_transposed ? p.k : p.n;
  if (blas == Blas::onednn) {
    static const auto sgemm = function_of<OneDnnSgemm>(kOneDnn, "dnnl_sgemm");
    if (sgemm == nullptr) return not_installed(kOneDnn);
    if (sgemm('N', p.b_transposed ? 'T' : 'N', p.m, p.n, p.k, p.alpha, p.a, p.k, p.b, ldb, p.beta,
              p.c, p.n) != 0)
      return Error{Code::unsupported, "oneDNN multiplies no such matrices"};
    return {};
  }
  constexpr int kRowMajor = 101, kPlain = 111, kTransposed = 112;
  static const auto sgemm = function_of<CblasSgemm>(kOpenBlas, "cblas_sgemm");
  if (sgemm == nullptr) return not_installed(kOpenBlas);
  const auto narrow = [](std::int64_t size) { return static_cast<int>(size); };
  sgemm(kRowMajor, kPlain, p.b_transposed ? kTransposed : kPlain, narrow(p.m), narrow(p.n),
        narrow(p.k), p.alpha, p.a, narrow(p.k), p.b, narrow(ldb), p.beta, p.c, narrow(p.n));
  return {};
}

// oneDNN's threads are those of OpenMP.
Result<> use_cores(Blas blas, std::uint32_t cores) {
  if (blas == Blas::openblas)
    return cores == 1 ? Result<>() : Error{Code::unsupported, "OpenBLAS is built without threads"};
  static const auto set = function_of<void (*)(int)>(kOpenMp, "omp_set_num_threads");
  if (set == nullptr) return not_installed(kOpenMp);
  set(static_cast<int>(cores));
  return {};
}

}  // namespace

Result<> five_steps(Blas blas, std::uint32_t cores, std::uint64_t rows, std::uint64_t cols,
                    std::span<float> x) {
  EBB_TRY(use_cores(blas, cores));
  const auto m = static_cast<std::int64_t>(rows), n = static_cast<std::int64_t>(cols);
  double squares = 0;
  for (const float value : x) squares += double{value} * double{value};
  const auto factor = static_cast<float>(1 / (std::sqrt(squares) + 1e-7));
  for (float& value : x) value *= factor;
  static std::vector<float> gram, q, room;  // memory is touched once
  gram.resize(rows * rows);
  q.resize(rows * rows);
  room.resize(rows * cols);
  float *now = x.data(), *next = room.data();
  for (int step = 0; step < 5; ++step) {
    constexpr float kA = 3.4445f, kB = -4.7750f, kC = 2.0315f;
    EBB_TRY(multiply(blas, {m, m, n, 1, now, now, true, 0, gram.data()}));
    std::ranges::copy(gram, q.begin());
    EBB_TRY(multiply(blas, {m, m, m, kC, gram.data(), gram.data(), false, kB, q.data()}));
    for (std::uint64_t i = 0; i < rows; ++i) q[i * rows + i] += kA;
    EBB_TRY(multiply(blas, {m, n, m, 1, q.data(), now, false, 0, next}));
    std::swap(now, next);
  }
  if (now != x.data()) std::ranges::copy(room, x.begin());
  return {};
}

}  // namespace ebb::bench
