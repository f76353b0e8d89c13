// The symmetric products of plugins/cuda/symmetric.cu, run on the host (emulated/): each tile, its
// edges, what lies beside the matrices, and the same bits whichever tiles there are.
#include <cmath>
#include <random>

#include "ebb/formats/core/bf16.h"
#include "ebb/libswap/sys/shared_library.h"
#include "plugins/cuda/launch.h"
#include "tests/libmuon/cuda/stub_control.h"

namespace ebb::cuda {
namespace {

struct Matrix {
  Matrix(std::uint64_t r, std::uint64_t c, std::uint64_t n)
      : rows(r), cols(c), ld((c + 15) / 16 * 16), step((r * ld + 127) / 128 * 128), count(n) {
    numbers.assign(count * step + 64, kNan);
    // As a device's memory, and what cuBLASLt asks for.
    first = (256 - reinterpret_cast<std::uintptr_t>(numbers.data()) % 256) / 2 % 128;
    numbers.resize(first + count * step, kNan);
  }
  std::uint16_t& at(std::uint64_t matrix, std::uint64_t row, std::uint64_t col) {
    return numbers[first + matrix * step + row * ld + col];
  }
  double value(std::uint64_t matrix, std::uint64_t row, std::uint64_t col) {
    return static_cast<double>(formats::bf16_to_f32(at(matrix, row, col)));
  }
  Batch batch() {
    return {numbers.data() + first, rows, cols, ld, step, count, libmuon::Precision::bf16};
  }

  static constexpr std::uint16_t kNan = 0x7fc1;
  std::uint64_t rows, cols, ld, step, count, first = 0;
  std::vector<std::uint16_t> numbers;
};

class CudaEmulated : public testing::Test {
 protected:
  void multiply(const Symmetric& product, unsigned processors) {
    using Multiply = decltype(ebb_emulated_symmetric);
    auto* const multiply = reinterpret_cast<Multiply*>(library_.symbol("ebb_emulated_symmetric"));
    ASSERT_NE(multiply, nullptr);
    multiply(&product, processors);
  }
  void fill(Matrix& matrix) {
    std::normal_distribution<float> normal;
    for (std::uint64_t i = 0; i < matrix.count; ++i)
      for (std::uint64_t row = 0; row < matrix.rows; ++row)
        for (std::uint64_t col = 0; col < matrix.cols; ++col)
          matrix.at(i, row, col) = formats::f32_to_bf16(normal(random_));
  }

 private:
  libswap::SharedLibrary library_ = *libswap::SharedLibrary::open(EBB_CUDA_STUB);
  std::mt19937 random_{1};
};

// Whether what was made is alpha left left^T + beta from, and nothing beside it was written.
void expect_product(Matrix& left, Matrix& from, Matrix& to, float alpha, float beta) {
  std::uint64_t wrong = 0;
  for (std::uint64_t i = 0; i < to.count; ++i)
    for (std::uint64_t row = 0; row < to.rows; ++row) {
      for (std::uint64_t col = 0; col <= row; ++col) {
        double sum = 0;
        for (std::uint64_t k = 0; k < left.cols; ++k)
          sum += left.value(i, row, k) * left.value(i, col, k);
        const double wanted = static_cast<double>(alpha) * sum +
                              (beta != 0 ? static_cast<double>(beta) * from.value(i, row, col) : 0);
        const double most = 0x1p-8 * std::abs(wanted) + 1e-5 * static_cast<double>(left.cols);
        const bool near = std::abs(to.value(i, row, col) - wanted) <= most;
        wrong += !near || to.at(i, row, col) != to.at(i, col, row);
      }
      for (std::uint64_t col = to.cols; col < to.ld; ++col)
        wrong += to.at(i, row, col) != Matrix::kNan;
    }
  EXPECT_EQ(wrong, 0u);
}

// Of tiles of 128 rows where there are many processors, of 256 where there is one: 512 rows are
// four of the first. Numbers behind k and behind the last row are NaN; k is long enough for each
// stage to be used more than once.
TEST_F(CudaEmulated, SymmetricProductsAreRightInEveryTileAndAtEveryEdge) {
  struct Case {
    std::uint64_t rows, depth, count;
    float beta;
  };
  for (const auto& [rows, depth, count, beta] :
       {Case{1, 1, 1, 0}, Case{16, 64, 3, 0}, Case{128, 65, 1, 2}, Case{129, 200, 2, 0.5f},
        Case{300, 7, 2, 0}, Case{150, 900, 1, 0}, Case{500, 500, 1, -1}, Case{512, 16, 1, 0}}) {
    SCOPED_TRACE(compose("{} x {} x {}", count, rows, depth));
    Matrix left(rows, depth, count), from(rows, rows, count);
    fill(left);
    fill(from);
    for (std::uint64_t i = 0; i < count; ++i)
      for (std::uint64_t row = 0; row < rows; ++row)
        for (std::uint64_t col = 0; col < row; ++col) from.at(i, col, row) = from.at(i, row, col);
    Matrix small(rows, rows, count), large(rows, rows, count);
    multiply({left.batch(), from.batch(), small.batch(), 1.5f, beta}, 1000);
    expect_product(left, from, small, 1.5f, beta);
    multiply({left.batch(), from.batch(), large.batch(), 1.5f, beta}, 1);
    for (std::uint64_t i = 0; i < count; ++i)
      for (std::uint64_t row = 0; row < rows; ++row)
        EXPECT_EQ(std::memcmp(&small.at(i, row, 0), &large.at(i, row, 0), 2 * small.ld), 0) << row;
  }
}

}  // namespace
}  // namespace ebb::cuda
