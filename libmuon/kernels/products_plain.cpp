#include "ebb/libmuon/kernels/product_loops.h"

namespace ebb::libmuon {
namespace {

// Without fused multiply-adds: its bits are its own.
struct Plain {
  typedef float Vector __attribute__((vector_size(16)));
  typedef std::uint32_t Bits __attribute__((vector_size(16)));
  static constexpr u64 kWidth = 4, kRows = 4, kUnit = 1;
  static Vector spread(float number) { return Vector{number, number, number, number}; }
  static Vector multiply_add(Vector a, Vector b, Vector sum) { return a * b + sum; }
};

}  // namespace

constinit const Products kPlainProducts = products_with<Plain, Operands::fp32>("plain");
constinit const Products kPlainTf32Products = products_with<Plain, Operands::tf32>("plain");

}  // namespace ebb::libmuon
