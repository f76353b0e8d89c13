#include "plugins/cuda/products.h"

#include <array>

namespace ebb::cuda {
namespace {

Answer answer_of(cublasStatus_t status, const char* doing, Why* why) {
  if (status == CUBLAS_STATUS_SUCCESS) return Answer::done;
  const Answer answer = status == CUBLAS_STATUS_ALLOC_FAILED ? Answer::no_memory : Answer::failed;
  return because(why, answer, std::string(doing) + ": " + cublasLtGetStatusString(status));
}

cudaDataType_t type_of(libmuon::Precision precision) {
  switch (precision) {
    case libmuon::Precision::bf16:
      return CUDA_R_16BF;
    case libmuon::Precision::fp16:
      return CUDA_R_16F;
    case libmuon::Precision::fp32:
    case libmuon::Precision::tf32:  // is kept so
      break;
  }
  return CUDA_R_32F;
}

}  // namespace

// What cuBLASLt is told of a product. It thinks in columns: a row-major matrix is its transpose
// there, so to^T = right^T left^T, and a right operand that is used transposed is read as it lies.
class Products::Operation {
 public:
  enum class Of : std::uint8_t { one, all };

  ~Operation() {
    for (const cublasLtMatrixLayout_t layout : layouts_)
      if (layout != nullptr) cublasLtMatrixLayoutDestroy(layout);
    if (description_ != nullptr) cublasLtMatmulDescDestroy(description_);
  }
  Operation() = default;
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  cublasStatus_t describe(const Product& product, Of of) {
    // fp32 sums of exact products, but where operands are to be rounded.
    const cublasComputeType_t compute = product.operands == Product::Operands::tf32
                                            ? CUBLAS_COMPUTE_32F_FAST_TF32
                                            : CUBLAS_COMPUTE_32F;
    cublasStatus_t status = cublasLtMatmulDescCreate(&description_, compute, CUDA_R_32F);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    const cublasOperation_t first =
        product.as == Product::Right::transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    status = cublasLtMatmulDescSetAttribute(description_, CUBLASLT_MATMUL_DESC_TRANSA, &first,
                                            sizeof(first));
    const std::array<const Batch*, 4> batches = {&product.right, &product.left, &product.from,
                                                 &product.to};
    for (std::size_t i = 0; i < batches.size() && status == CUBLAS_STATUS_SUCCESS; ++i)
      status = lay_out(*batches[i], of, layouts_[i]);
    return status;
  }

  cublasLtMatmulDesc_t description() const { return description_; }
  cublasLtMatrixLayout_t a() const { return layouts_[0]; }
  cublasLtMatrixLayout_t b() const { return layouts_[1]; }
  cublasLtMatrixLayout_t c() const { return layouts_[2]; }
  cublasLtMatrixLayout_t d() const { return layouts_[3]; }

 private:
  static cublasStatus_t lay_out(const Batch& batch, Of of, cublasLtMatrixLayout_t& layout) {
    const auto ld = static_cast<std::int64_t>(batch.ld);
    cublasStatus_t status =
        cublasLtMatrixLayoutCreate(&layout, type_of(batch.precision), batch.cols, batch.rows, ld);
    if (status != CUBLAS_STATUS_SUCCESS || of == Of::one) return status;
    const auto count = static_cast<std::int32_t>(batch.count);
    const auto step = static_cast<std::int64_t>(batch.step);
    status = cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                              sizeof(count));
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    return cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                            &step, sizeof(step));
  }

  cublasLtMatmulDesc_t description_ = nullptr;
  std::array<cublasLtMatrixLayout_t, 4> layouts_{};
};

Answer Products::open(Products& products, Why* why) {
  return answer_of(cublasLtCreate(&products.handle_), "cublasLtCreate", why);
}

Products::~Products() {
  if (handle_ != nullptr) cublasLtDestroy(handle_);
}

// For one matrix of the shape. Sums are not split over blocks that would be added afterwards.
Answer Products::choose(const Product& product, const Key& key, Chosen& chosen, Why* why) {
  if (const auto known = chosen_.find(key); known != chosen_.end()) {
    chosen = known->second;
    return Answer::done;
  }
  Operation operation;
  cublasStatus_t status = operation.describe(product, Operation::Of::one);
  cublasLtMatmulPreference_t preference = nullptr;
  if (status == CUBLAS_STATUS_SUCCESS) status = cublasLtMatmulPreferenceCreate(&preference);
  const std::uint64_t workspace = kProductWorkspace;
  if (status == CUBLAS_STATUS_SUCCESS)
    status = cublasLtMatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace));
  const std::uint32_t whole_sums = CUBLASLT_REDUCTION_SCHEME_NONE;
  if (status == CUBLAS_STATUS_SUCCESS)
    status = cublasLtMatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &whole_sums, sizeof(whole_sums));
  std::array<cublasLtMatmulHeuristicResult_t, 16> found{};
  int count = 0;
  if (status == CUBLAS_STATUS_SUCCESS)
    status = cublasLtMatmulAlgoGetHeuristic(handle_, operation.description(), operation.a(),
                                            operation.b(), operation.c(), operation.d(), preference,
                                            static_cast<int>(found.size()), found.data(), &count);
  if (preference != nullptr) cublasLtMatmulPreferenceDestroy(preference);
  if (status != CUBLAS_STATUS_SUCCESS)
    return answer_of(status, "cublasLtMatmulAlgoGetHeuristic", why);
  for (int i = 0; i < count; ++i) {
    std::int32_t splits = 0;
    std::size_t size = 0;
    if (found[i].state != CUBLAS_STATUS_SUCCESS ||
        cublasLtMatmulAlgoConfigGetAttribute(&found[i].algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM,
                                             &splits, sizeof(splits),
                                             &size) != CUBLAS_STATUS_SUCCESS ||
        splits > 1)
      continue;
    chosen = {found[i].algo};
    chosen_.emplace(key, chosen);
    return Answer::done;
  }
  return because(why, Answer::failed,
                 "cuBLASLt has no algorithm for a product of " + std::to_string(product.to.rows) +
                     " x " + std::to_string(product.to.cols));
}

Answer Products::multiply(const Product& product, void* workspace, cudaStream_t stream, Why* why) {
  const Key key = {product.to.precision, product.operands, product.as,
                   product.to.rows,      product.to.cols,  product.left.cols,
                   product.left.ld,      product.right.ld, product.to.ld};
  Chosen chosen{};
  if (const Answer answer = choose(product, key, chosen, why); answer != Answer::done)
    return answer;
  Operation all;
  if (const auto status = all.describe(product, Operation::Of::all);
      status != CUBLAS_STATUS_SUCCESS)
    return answer_of(status, "describing a product", why);
  cublasLtMatmulHeuristicResult_t checked{};
  const bool together =
      cublasLtMatmulAlgoCheck(handle_, all.description(), all.a(), all.b(), all.c(), all.d(),
                              &chosen.algorithm, &checked) == CUBLAS_STATUS_SUCCESS &&
      checked.workspaceSize <= kProductWorkspace;
  Operation one;
  if (const auto status = one.describe(product, Operation::Of::one);
      status != CUBLAS_STATUS_SUCCESS)
    return answer_of(status, "describing a product", why);
  const Operation& used = together ? all : one;
  // An algorithm that does not take the batch takes its matrices one by one: the same bits.
  const std::uint64_t calls = together ? 1 : product.to.count;
  const std::uint64_t size = product.to.precision == libmuon::Precision::fp32 ? 4 : 2;
  const auto at = [&](const Batch& batch, std::uint64_t number) {
    return static_cast<char*>(batch.data) + number * batch.step * size;
  };
  for (std::uint64_t i = 0; i < calls; ++i) {
    const auto status = cublasLtMatmul(
        handle_, used.description(), &product.alpha, at(product.right, i), used.a(),
        at(product.left, i), used.b(), &product.beta, at(product.from, i), used.c(),
        at(product.to, i), used.d(), &chosen.algorithm, workspace, kProductWorkspace, stream);
    if (status != CUBLAS_STATUS_SUCCESS) return answer_of(status, "cublasLtMatmul", why);
  }
  return Answer::done;
}

}  // namespace ebb::cuda
