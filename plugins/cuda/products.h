// Products of Newton-Schulz by cuBLASLt, without split-K and with a workspace of one size. What a
// matrix gives is decided by its shape and type: how many are multiplied at once, and on how many
// ranks, changes no bit. A batch has the algorithm that the library advises for it where that is of
// the same family as the one for a single matrix and gives a sample the same bits; else that one.
#pragma once

#include <cublasLt.h>

#include <map>
#include <tuple>
#include <vector>

#include "plugins/cuda/device.h"
#include "plugins/cuda/launch.h"

namespace ebb::cuda {

inline constexpr std::uint64_t kProductWorkspace = 32u << 20;  // bytes

// to = beta from + alpha left right^(T), rounded once; sums in fp32. All row-major, of one
// precision, `count` of them. tf32: operands that are fp32 are rounded as the library does it.
struct Product {
  enum class Right : std::uint8_t { as_is, transposed };
  enum class Operands : std::uint8_t { as_kept, tf32 };
  Batch left, right, from, to;
  Right as = Right::as_is;
  Operands operands = Operands::as_kept;
  float alpha = 1, beta = 0;
};

class Products {
 public:
  static Answer open(Products& products, Why* why);
  Products() = default;
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  // `workspace`: kProductWorkspace bytes of the device, used by one stream, which is waited for
  // when a product of this shape is asked for the first time. `symmetric`: of a matrix and itself
  // transposed, whether what is made is known to be symmetric to the bit.
  Answer multiply(const Product& product, void* workspace, cudaStream_t stream, Why* why,
                  bool* symmetric = nullptr);

 private:
  using Key = std::tuple<libmuon::Precision, Product::Operands, Product::Right, std::uint64_t,
                         std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t,
                         std::uint64_t, bool>;
  struct Chosen {
    cublasLtMatmulAlgo_t algorithm;
    bool together = true;  // takes the batch; else its matrices one by one
    bool symmetric = false;
  };
  class Operation;
  class Sample;

  Answer choose(const Product& product, void* workspace, cudaStream_t stream, Chosen& chosen,
                Why* why);
  Answer advised(const Product& product, cublasLtMatmulAlgo_t& algorithm, Why* why) const;
  bool takes(const Product& product, const cublasLtMatmulAlgo_t& algorithm) const;

  cublasLtHandle_t handle_ = nullptr;
  std::map<Key, Chosen> chosen_;
};

}  // namespace ebb::cuda
