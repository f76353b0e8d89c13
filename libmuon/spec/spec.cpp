#include "ebb/libmuon/spec/spec.h"

namespace ebb::libmuon {

AdamSpec AdamSpec::torch() {
  return {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01};
}

DType update_dtype(const MuonSpec& spec) {
  const bool rounded = spec.norm_of == NormOf::rounded && spec.precision == Precision::bf16;
  return spec.handed == Precision::bf16 || rounded ? DType::bf16 : DType::f32;
}

DType result_dtype(const MuonSpec& spec) {
  if (handed_back(spec) == Precision::bf16 || spec.precision == Precision::bf16) return DType::bf16;
  return spec.precision == Precision::fp16 ? DType::f16 : DType::f32;
}

}  // namespace ebb::libmuon
