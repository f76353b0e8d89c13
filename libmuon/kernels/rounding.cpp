#include "ebb/libmuon/kernels/rounding.h"

namespace ebb::libmuon {
namespace {

template <Precision kPrecision>
[[gnu::always_inline]] inline void round_loop(float* values, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) values[i] = rounded<kPrecision>(values[i]);
}

EBB_CLONES void round_bf16(float* values, std::size_t count) {
  round_loop<Precision::bf16>(values, count);
}
EBB_CLONES void round_fp16(float* values, std::size_t count) {
  round_loop<Precision::fp16>(values, count);
}
EBB_CLONES void round_tf32(float* values, std::size_t count) {
  round_loop<Precision::tf32>(values, count);
}

}  // namespace

void round_all(Precision precision, std::span<float> values) {
  if (precision == Precision::bf16) round_bf16(values.data(), values.size());
  if (precision == Precision::fp16) round_fp16(values.data(), values.size());
  if (precision == Precision::tf32) round_tf32(values.data(), values.size());
}

}  // namespace ebb::libmuon
