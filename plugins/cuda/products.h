// Products of Newton-Schulz by cuBLASLt. The algorithm is chosen by shape and type alone, without
// split-K and with a workspace of one size, and used for every batch: how many matrices are
// multiplied at once, and on how many ranks, changes no bit.
#pragma once

#include <cublasLt.h>

#include <map>
#include <tuple>

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

  // `workspace`: kProductWorkspace bytes of the device, used by one stream.
  Answer multiply(const Product& product, void* workspace, cudaStream_t stream, Why* why);

 private:
  using Key = std::tuple<libmuon::Precision, Product::Operands, Product::Right, std::uint64_t,
                         std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t>;
  struct Chosen {
    cublasLtMatmulAlgo_t algorithm;
  };
  class Operation;

  Answer choose(const Product& product, const Key& key, Chosen& chosen, Why* why);

  cublasLtHandle_t handle_ = nullptr;
  std::map<Key, Chosen> chosen_;
};

}  // namespace ebb::cuda
