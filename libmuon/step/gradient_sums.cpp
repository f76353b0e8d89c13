#include "ebb/libmuon/step/gradient_sums.h"

namespace ebb::libmuon {

using libswap::Buffer;
using libswap::Event;

namespace {

std::uint64_t elems_of(const StatePlan& plan, std::uint32_t param) {
  return plan.gradients().local_elems(param, plan.rank());
}

}  // namespace

std::uint64_t GradientSums::bytes(const StatePlan& plan) {
  std::uint64_t elems = 0;
  for (std::uint32_t param = 0; param < plan.params(); ++param) elems += elems_of(plan, param);
  return elems * sizeof(float);
}

Result<GradientSums> GradientSums::make(const StatePlan& plan, libswap::Device* device) {
  GradientSums sums;
  sums.first_ = {0};
  for (std::uint32_t param = 0; param < plan.params(); ++param)
    sums.first_.push_back(sums.first_.back() + elems_of(plan, param));
  sums.begun_.assign(plan.params(), false);
  EBB_TRY_ASSIGN(sums.memory_, libswap::allocate(device, bytes(plan)));
  return sums;
}

Buffer GradientSums::of(std::uint32_t param) const {
  return memory_.buffer().as(DType::f32).sub(first_[param], first_[param + 1] - first_[param]);
}

Event GradientSums::add(Kernels& kernels, std::uint32_t param, const Buffer& g,
                        const Event& ready) {
  const AddRange range{g, of(param), !begun_[param]};
  begun_[param] = true;
  return kernels.add({&range, 1}, {&ready, 1});
}

}  // namespace ebb::libmuon
