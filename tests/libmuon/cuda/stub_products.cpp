// cuBLASLt: products by the textbook, sums in fp32, with the shapes, strides and types that they
// are described with. The first algorithm that it offers splits its sums and must not be taken; the
// second is another for batches, and takes any but one of three. "batches as one" fails: that other
// one adds up from behind; "batches alike": it is of another family.
#include <cublasLt.h>

#include <vector>

#include "ebb/formats/core/check.h"
#include "ebb/libmuon/kernels/rounding.h"
#include "tests/libmuon/cuda/stub.h"
#include "tests/libmuon/cuda/stub_numbers.h"

namespace {

using ebb::stub::Numbers;

struct Layout {
  cudaDataType type;
  std::uint64_t rows, cols;
  std::int64_t ld, step = 0;
  std::int32_t count = 1;
};
struct Description {
  cublasOperation_t a = CUBLAS_OP_N;
  bool tf32 = false;
};
struct Preference {
  std::uint64_t workspace = 0;
  std::uint32_t reductions = ~0u;
};
constexpr std::uint64_t kSplit = 1, kWhole = 2, kOfBatch = 3, kBackwards = 4, kOfOthers = 5;

Layout& layout_of(cublasLtMatrixLayout_t layout) { return *reinterpret_cast<Layout*>(layout); }

cublasStatus_t answer(const char* function) {
  return ebb::stub::fails(function) ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}

struct Operand {
  Layout layout;
  void* data;
  Numbers of(std::int64_t number) const {
    const std::uint64_t size = layout.type == CUDA_R_32F ? 4 : 2;
    const std::uint64_t elems = static_cast<std::uint64_t>(layout.ld) * layout.cols;
    auto* const first =
        static_cast<std::byte*>(data) + static_cast<std::uint64_t>(number * layout.step) * size;
    EBB_CHECK(reinterpret_cast<std::uintptr_t>(first) % 16 == 0);
    // The last column ends with its rows.
    const std::uint64_t used = elems - static_cast<std::uint64_t>(layout.ld) + layout.rows;
    return {ebb::stub::open(first, used * size),
            layout.type == CUDA_R_32F    ? ebb::libmuon::Precision::fp32
            : layout.type == CUDA_R_16BF ? ebb::libmuon::Precision::bf16
                                         : ebb::libmuon::Precision::fp16};
  }
};

struct Work {
  bool backwards;
  cublasOperation_t op;
  bool tf32;
  float alpha, beta;
  Operand a, b, c, d;

  float operand(float value) const {
    return tf32 ? ebb::libmuon::rounded<ebb::libmuon::Precision::tf32>(value) : value;
  }
  // Columns: element (i, j) lies at i + j ld.
  void multiply(std::int64_t number) const {
    const Numbers av = a.of(number), bv = b.of(number), cv = c.of(number), dv = d.of(number);
    const std::uint64_t m = d.layout.rows, n = d.layout.cols, k = b.layout.rows;
    const auto ld = [](const Operand& of) { return static_cast<std::uint64_t>(of.layout.ld); };
    EBB_CHECK((op == CUBLAS_OP_N ? a.layout.cols : a.layout.rows) == k);
    EBB_CHECK((op == CUBLAS_OP_N ? a.layout.rows : a.layout.cols) == m && b.layout.cols == n);
    std::vector<float> left(m * k);
    for (std::uint64_t i = 0; i < m; ++i)
      for (std::uint64_t l = 0; l < k; ++l)
        left[i * k + l] =
            operand(op == CUBLAS_OP_N ? av.get(i + l * ld(a)) : av.get(l + i * ld(a)));
    std::vector<float> right(k);
    for (std::uint64_t j = 0; j < n; ++j) {
      for (std::uint64_t l = 0; l < k; ++l) right[l] = operand(bv.get(l + j * ld(b)));
      for (std::uint64_t i = 0; i < m; ++i) {
        float sum = 0;
        for (std::uint64_t at = 0; at < k; ++at) {
          const std::uint64_t l = backwards ? k - 1 - at : at;
          sum += left[i * k + l] * right[l];
        }
        const float old = beta == 0 ? 0 : beta * cv.get(i + j * ld(c));
        dv.put(i + j * ld(d), alpha * sum + old);
      }
    }
  }
};

}  // namespace

extern "C" {

const char* cublasLtGetStatusString(cublasStatus_t) { return "failed as asked"; }
std::size_t cublasLtGetVersion() { return 130101; }
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(new int);
  return answer("cublasLtCreate");
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete reinterpret_cast<int*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* description,
                                        cublasComputeType_t compute, cudaDataType_t scale) {
  const bool tf32 = compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  EBB_CHECK((tf32 || compute == CUBLAS_COMPUTE_32F) && scale == CUDA_R_32F);
  *description = reinterpret_cast<cublasLtMatmulDesc_t>(new Description{.tf32 = tf32});
  return answer("cublasLtMatmulDescCreate");
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) {
  delete reinterpret_cast<Description*>(description);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t size) {
  EBB_CHECK(attribute == CUBLASLT_MATMUL_DESC_TRANSA && size == sizeof(cublasOperation_t));
  reinterpret_cast<Description*>(description)->a = *static_cast<const cublasOperation_t*>(value);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          std::uint64_t rows, std::uint64_t cols, std::int64_t ld) {
  EBB_CHECK(static_cast<std::uint64_t>(ld) >= rows);
  *layout = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{type, rows, cols, ld});
  return answer("cublasLtMatrixLayoutCreate");
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete &layout_of(layout);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, std::size_t size) {
  if (attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) {
    EBB_CHECK(size == sizeof(std::int32_t));
    layout_of(layout).count = *static_cast<const std::int32_t*>(value);
  } else {
    EBB_CHECK(attribute == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET &&
              size == sizeof(std::int64_t));
    layout_of(layout).step = *static_cast<const std::int64_t*>(value);
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete reinterpret_cast<Preference*>(preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, std::size_t) {
  auto& to = *reinterpret_cast<Preference*>(preference);
  if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
    to.workspace = *static_cast<const std::uint64_t*>(value);
  if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
    to.reductions = *static_cast<const std::uint32_t*>(value);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t found[], int* count) {
  const auto& by = *reinterpret_cast<Preference*>(preference);
  EBB_CHECK(by.reductions == CUBLASLT_REDUCTION_SCHEME_NONE && by.workspace > 0);
  EBB_CHECK(wanted >= 2);
  found[0].algo.data[0] = kSplit;
  if (layout_of(c).count == 1)
    found[1].algo.data[0] = kWhole;
  else
    found[1].algo.data[0] = ebb::stub::fails("batches as one")  ? kBackwards
                            : ebb::stub::fails("batches alike") ? kOfOthers
                                                                : kOfBatch;
  for (int i = 0; i < 2; ++i) found[i].state = CUBLAS_STATUS_SUCCESS;
  *count = ebb::stub::fails("algorithms") ? 1 : 2;
  return answer("cublasLtMatmulAlgoGetHeuristic");
}
cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void* value, std::size_t size,
                                                    std::size_t* written) {
  EBB_CHECK(size == sizeof(std::int32_t));
  const std::uint64_t number = algorithm->data[0];
  if (attribute == CUBLASLT_ALGO_CONFIG_SPLITK_NUM)
    *static_cast<std::int32_t*>(value) = number == kSplit ? 4 : 1;
  else if (attribute == CUBLASLT_ALGO_CONFIG_ID)
    *static_cast<std::int32_t*>(value) = number == kOfOthers ? 7 : 66;
  else
    return CUBLAS_STATUS_INVALID_VALUE;
  *written = size;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t*,
                                       cublasLtMatmulHeuristicResult_t* result) {
  result->workspaceSize = 0;
  return layout_of(d).count == 3 ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t description, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              std::size_t workspace_bytes, cudaStream_t stream) {
  EBB_CHECK(algorithm->data[0] != kSplit);
  if (algorithm->data[0] >= kOfBatch) ebb::stub::fails("products by a batch's algorithm");
  if (const auto failed = answer("cublasLtMatmul"); failed != CUBLAS_STATUS_SUCCESS) return failed;
  ebb::stub::open(workspace, workspace_bytes);
  const auto& described = *reinterpret_cast<Description*>(description);
  const Work work = {.backwards = algorithm->data[0] == kBackwards,
                     .op = described.a,
                     .tf32 = described.tf32,
                     .alpha = *static_cast<const float*>(alpha),
                     .beta = *static_cast<const float*>(beta),
                     .a = {layout_of(a_layout), const_cast<void*>(a)},
                     .b = {layout_of(b_layout), const_cast<void*>(b)},
                     .c = {layout_of(c_layout), const_cast<void*>(c)},
                     .d = {layout_of(d_layout), d}};
  EBB_CHECK(work.a.layout.count == work.d.layout.count &&
            work.b.layout.count == work.d.layout.count);
  ebb::stub::spend(1);
  const auto& d_shape = work.d.layout;
  if (ebb::stub::too_large(d_shape.rows * d_shape.cols * work.b.layout.rows *
                           static_cast<std::uint64_t>(d_shape.count)))
    return CUBLAS_STATUS_SUCCESS;
  ebb::stub::enqueue(stream, [work] {
    for (std::int32_t i = 0; i < work.d.layout.count; ++i) work.multiply(i);
  });
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
