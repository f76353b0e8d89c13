#include "plugins/cuda/products.h"

#include <cuda_fp16.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "ebb/formats/core/bf16.h"

namespace ebb::cuda {
namespace {

using libmuon::Precision;

Answer answer_of(cublasStatus_t status, const char* doing, Why* why) {
  if (status == CUBLAS_STATUS_SUCCESS) return Answer::done;
  const Answer answer = status == CUBLAS_STATUS_ALLOC_FAILED ? Answer::no_memory : Answer::failed;
  return because(why, answer, std::string(doing) + ": " + cublasLtGetStatusString(status));
}

cudaDataType_t type_of(libmuon::Precision precision) {
  switch (precision) {
    case Precision::bf16:
      return CUDA_R_16BF;
    case Precision::fp16:
      return CUDA_R_16F;
    case Precision::fp32:
    case Precision::tf32:  // is kept so
      break;
  }
  return CUDA_R_32F;
}

}  // namespace

// What cuBLASLt is told of a product. It thinks in columns: a row-major matrix is its transpose
// there, so to^T = right^T left^T, and a right operand that is used transposed is read as it lies.
class Products::Operation {
 public:
  ~Operation() {
    for (const cublasLtMatrixLayout_t layout : layouts_)
      if (layout != nullptr) cublasLtMatrixLayoutDestroy(layout);
    if (description_ != nullptr) cublasLtMatmulDescDestroy(description_);
  }
  Operation() = default;
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  cublasStatus_t describe(const Product& product) {
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
      status = lay_out(*batches[i], layouts_[i]);
    return status;
  }

  // Gives the stream the product.
  cublasStatus_t run(cublasLtHandle_t handle, const Product& product,
                     const cublasLtMatmulAlgo_t& algorithm, void* workspace,
                     cudaStream_t stream) const {
    return cublasLtMatmul(handle, description_, &product.alpha, product.right.data, a(),
                          product.left.data, b(), &product.beta, product.from.data, c(),
                          product.to.data, d(), &algorithm, workspace, kProductWorkspace, stream);
  }

  cublasLtMatmulDesc_t description() const { return description_; }
  cublasLtMatrixLayout_t a() const { return layouts_[0]; }
  cublasLtMatrixLayout_t b() const { return layouts_[1]; }
  cublasLtMatrixLayout_t c() const { return layouts_[2]; }
  cublasLtMatrixLayout_t d() const { return layouts_[3]; }

 private:
  static cublasStatus_t lay_out(const Batch& batch, cublasLtMatrixLayout_t& layout) {
    const auto ld = static_cast<std::int64_t>(batch.ld);
    cublasStatus_t status =
        cublasLtMatrixLayoutCreate(&layout, type_of(batch.precision), batch.cols, batch.rows, ld);
    if (status != CUBLAS_STATUS_SUCCESS || batch.count == 1) return status;
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

namespace {

// Of the library's algorithms: how they add up and round; their tiles are beside it.
std::int32_t family_of(const cublasLtMatmulAlgo_t& algorithm) {
  std::int32_t family = -1;
  std::size_t size = 0;
  const auto status = cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_ID,
                                                           &family, sizeof(family), &size);
  return status == CUBLAS_STATUS_SUCCESS ? family : -1;
}

// The number-th of a product's matrices alone.
Product one_of(Product product, std::uint64_t number) {
  for (Batch* const batch : {&product.left, &product.right, &product.from, &product.to}) {
    batch->data =
        static_cast<char*>(batch->data) + number * batch->step * size_of(batch->precision);
    batch->count = 1;
  }
  return product;
}

}  // namespace

// A product of the shape's length but few rows and columns, in memory of its own for as long as it
// is looked at. An element's sum knows its length alone, so that what algorithms give here they
// give everywhere. Its second half takes back what the first one added in every other element: what
// is left there is what rounding did, which no two orders of adding have in common. Where there is
// no memory for it, nothing is known.
class Products::Sample {
 public:
  Sample(cublasLtHandle_t handle, const Product& of, void* workspace, cudaStream_t stream)
      : handle_(handle), workspace_(workspace), stream_(stream), product_(one_of(of, 0)) {
    const bool transposed = of.as == Product::Right::transposed;
    const std::uint64_t length = of.left.cols;
    const std::uint64_t rows = std::min(kSide, of.to.rows), cols = std::min(kSide, of.to.cols);
    lay_out(product_.left, rows, length);
    lay_out(product_.right, transposed ? cols : length, transposed ? length : cols);
    lay_out(product_.to, rows, cols);
    put(product_.left, [](std::uint64_t row, std::uint64_t col) { return Place{row, col}; });
    put(product_.right, [=](std::uint64_t row, std::uint64_t col) {
      return transposed ? Place{row, col} : Place{col, row};
    });
    product_.from = product_.to;
    if (of.beta != 0) {
      lay_out(product_.from, rows, cols);
      put(product_.from, [](std::uint64_t row, std::uint64_t col) { return Place{row, col}; });
    }
    if (transposed && of.left.data == of.right.data) product_.right = product_.left;
  }
  ~Sample() {
    for (void* const memory : memory_) cudaFree(memory);
  }
  Sample(const Sample&) = delete;
  Sample& operator=(const Sample&) = delete;

  // Of the sum alone, and with what it is scaled with and added to, which would hide the first.
  // Empty where the algorithm is not for it, or there is no memory.
  std::vector<std::byte> by(const cublasLtMatmulAlgo_t& algorithm) {
    Product alone = product_;
    alone.from = alone.to;
    alone.alpha = 1;
    alone.beta = 0;
    std::vector<std::byte> found;
    for (const Product& one : {alone, product_})
      if (!append(one, algorithm, found)) return {};
    return found;
  }
  // Of a product of a matrix and itself transposed.
  bool symmetric(const std::vector<std::byte>& found) const {
    const Batch& to = product_.to;
    const std::uint64_t size = size_of(to.precision);
    if (found.empty() || product_.left.data != product_.right.data) return false;
    for (std::uint64_t row = 0; row < to.rows; ++row)
      for (std::uint64_t col = 0; col < row; ++col)
        if (std::memcmp(&found[(row * to.ld + col) * size], &found[(col * to.ld + row) * size],
                        size) != 0)
          return false;
    return true;
  }

 private:
  static constexpr std::uint64_t kSide = 384;

  // Which sum of a factor's, and where in its length.
  struct Place {
    std::uint64_t sum, along;
  };

  bool append(const Product& product, const cublasLtMatmulAlgo_t& algorithm,
              std::vector<std::byte>& found) {
    const std::uint64_t before = found.size();
    const std::uint64_t bytes = product.to.step * size_of(product.to.precision);
    found.resize(before + bytes);
    Operation operation;
    const bool well =
        well_ && operation.describe(product) == CUBLAS_STATUS_SUCCESS &&
        operation.run(handle_, product, algorithm, workspace_, stream_) == CUBLAS_STATUS_SUCCESS &&
        cudaMemcpyAsync(&found[before], product.to.data, bytes, cudaMemcpyDefault, stream_) ==
            cudaSuccess &&
        cudaStreamSynchronize(stream_) == cudaSuccess;
    static_cast<void>(cudaGetLastError());
    return well;
  }
  void lay_out(Batch& batch, std::uint64_t rows, std::uint64_t cols) {
    batch.rows = rows;
    batch.cols = cols;
    batch.ld = leading_of(cols);
    batch.step = rows * batch.ld;
    batch.data = nullptr;
    well_ = well_ && cudaMalloc(&batch.data, batch.step * size_of(batch.precision)) == cudaSuccess;
    if (batch.data != nullptr) memory_.push_back(batch.data);
  }
  template <typename PlaceOf>
  void put(const Batch& batch, const PlaceOf& place_of) {
    const std::uint64_t size = size_of(batch.precision);
    std::vector<std::byte> all(batch.step * size);
    for (std::uint64_t row = 0; row < batch.rows; ++row)
      for (std::uint64_t col = 0; col < batch.cols; ++col)
        put(batch.precision, number_at(place_of(row, col)), &all[(row * batch.ld + col) * size]);
    well_ = well_ &&
            cudaMemcpyAsync(batch.data, all.data(), all.size(), cudaMemcpyDefault, stream_) ==
                cudaSuccess &&
            cudaStreamSynchronize(stream_) == cudaSuccess;
  }
  // Of magnitudes from 1 down to 2^-7, with all bits that a number of the precision has, eight of
  // fp16's.
  float number_at(Place place) const {
    const std::uint64_t half = product_.left.cols / 2;
    if (place.along >= 2 * half) return 0;
    std::uint64_t mixed = (place.sum * half + place.along % half + 1) * 0x9e3779b97f4a7c15u;
    mixed ^= mixed >> 29;
    const int bits = product_.left.precision == Precision::fp32 ? 24 : 8;
    const std::uint64_t most = std::uint64_t{1} << (bits - 1);
    const auto whole = static_cast<float>(most + (mixed >> 32) % most);
    const float number = std::ldexp(whole, -bits - static_cast<int>(mixed % 8));
    const bool taken_back = place.along >= half && place.sum % 2 == 1;
    return ((mixed >> 16) % 2 == 1) != taken_back ? -number : number;
  }
  static void put(Precision precision, float number, std::byte* to) {
    const std::uint16_t half = precision == Precision::fp16 ? __half_as_ushort(__float2half(number))
                                                            : formats::f32_to_bf16(number);
    if (precision == Precision::fp32)
      std::memcpy(to, &number, sizeof(number));
    else
      std::memcpy(to, &half, sizeof(half));
  }

  const cublasLtHandle_t handle_;
  void* const workspace_;
  const cudaStream_t stream_;
  bool well_ = true;
  std::vector<void*> memory_;
  Product product_;
};

// Sums are not split over blocks that would be added afterwards.
Answer Products::advised(const Product& product, cublasLtMatmulAlgo_t& algorithm, Why* why) const {
  Operation operation;
  cublasStatus_t status = operation.describe(product);
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
    algorithm = found[i].algo;
    return Answer::done;
  }
  return because(why, Answer::failed,
                 "cuBLASLt has no algorithm for a product of " + std::to_string(product.to.rows) +
                     " x " + std::to_string(product.to.cols));
}

bool Products::takes(const Product& product, const cublasLtMatmulAlgo_t& algorithm) const {
  Operation operation;
  cublasLtMatmulHeuristicResult_t checked{};
  return operation.describe(product) == CUBLAS_STATUS_SUCCESS &&
         cublasLtMatmulAlgoCheck(handle_, operation.description(), operation.a(), operation.b(),
                                 operation.c(), operation.d(), &algorithm,
                                 &checked) == CUBLAS_STATUS_SUCCESS &&
         checked.workspaceSize <= kProductWorkspace;
}

Answer Products::choose(const Product& product, void* workspace, cudaStream_t stream,
                        Chosen& chosen, Why* why) {
  if (const Answer answer = advised(one_of(product, 0), chosen.algorithm, why);
      answer != Answer::done)
    return answer;
  Sample sample(handle_, product, workspace, stream);
  const std::vector<std::byte> wanted = sample.by(chosen.algorithm);
  chosen.symmetric = sample.symmetric(wanted);
  if (product.to.count == 1) return Answer::done;
  cublasLtMatmulAlgo_t for_batch{};
  Why nobodys;
  if (advised(product, for_batch, &nobodys) == Answer::done && takes(product, for_batch) &&
      family_of(for_batch) == family_of(chosen.algorithm) && !wanted.empty() &&
      sample.by(for_batch) == wanted)
    chosen.algorithm = for_batch;
  else
    chosen.together = takes(product, chosen.algorithm);
  return Answer::done;
}

Answer Products::multiply(const Product& product, void* workspace, cudaStream_t stream, Why* why,
                          bool* symmetric) {
  const Key key = {product.to.precision, product.operands,  product.as,       product.to.rows,
                   product.to.cols,      product.left.cols, product.left.ld,  product.right.ld,
                   product.to.ld,        product.to.count,  product.beta != 0};
  auto known = chosen_.find(key);
  if (known == chosen_.end()) {
    Chosen chosen{};
    if (const Answer answer = choose(product, workspace, stream, chosen, why);
        answer != Answer::done)
      return answer;
    known = chosen_.emplace(key, chosen).first;
  }
  const Chosen& chosen = known->second;
  if (symmetric != nullptr) *symmetric = chosen.symmetric;
  const auto part = [&](std::uint64_t i) { return chosen.together ? product : one_of(product, i); };
  Operation operation;  // the same of each
  if (const auto status = operation.describe(part(0)); status != CUBLAS_STATUS_SUCCESS)
    return answer_of(status, "describing a product", why);
  const std::uint64_t calls = chosen.together ? 1 : product.to.count;
  for (std::uint64_t i = 0; i < calls; ++i) {
    if (const auto status = operation.run(handle_, part(i), chosen.algorithm, workspace, stream);
        status != CUBLAS_STATUS_SUCCESS)
      return answer_of(status, "cublasLtMatmul", why);
  }
  return Answer::done;
}

}  // namespace ebb::cuda
