// GradientSums: gradients of micro-batches added up, in fp32 and in the order in which they come:
// the pieces that this rank holds, in memory of the engine's own. A sum is elementwise, so its bits
// do not depend on the partition.
#pragma once

#include <cstdint>
#include <vector>

#include "ebb/libmuon/kernels/table.h"
#include "ebb/libmuon/plan/state_plan.h"

namespace ebb::libmuon {

class GradientSums {
 public:
  // None: nothing is added.
  GradientSums() = default;
  // Of all parameters that this rank has a gradient of, in the memory of `device`; null: the host.
  static Result<GradientSums> make(const StatePlan& plan, libswap::Device* device);
  static std::uint64_t bytes(const StatePlan& plan);

  // This rank's pieces, fp32.
  libswap::Buffer of(std::uint32_t param) const;
  // Behind `ready`; what the event passes behind, `g` is no longer used and the sum is there.
  libswap::Event add(Kernels& kernels, std::uint32_t param, const libswap::Buffer& g,
                     const libswap::Event& ready);
  bool any(std::uint32_t param) const { return begun_[param]; }
  // The next gradient of each parameter is the first of its sum.
  void forget() { begun_.assign(begun_.size(), false); }

 private:
  std::vector<std::uint64_t> first_;  // by parameter, and the end: in elements
  std::vector<bool> begun_;           // by parameter
  libswap::DeviceMemory memory_;
};

}  // namespace ebb::libmuon
