// What a device does in how long: the least of several rounds, of the wall's clock, from the first
// call to the event behind the last.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ebb/libmuon/kernels/plugin_kernels.h"
#include "tests/gpu/findings.h"

namespace ebb::gpu {

// The device, its kernels, and a pool for those of the host that nobody uses.
struct Bench {
  static Result<Bench> open(const std::string& plugin);
  Rounds timed;
  std::unique_ptr<libswap::PluginDevice> device;
  std::unique_ptr<libmuon::Accelerator> accelerator;
  std::unique_ptr<libswap::Pool> pool;
  std::unique_ptr<libmuon::Kernels> kernels;
  std::uint32_t choice = 0;  // of products, as the device measured it
};

Result<std::vector<Moved>> measure_copies(Bench& bench, std::uint64_t bytes);
// Each kernel over `elems` elements.
Result<std::vector<Moved>> measure_elementwise(Bench& bench, std::uint64_t elems);
// A preset's Newton-Schulz of a batch, by the products that were chosen, or by the library's alone.
Result<Orthogonalized> measure_newton_schulz(Bench& bench, const std::string& preset,
                                             const Batch& batch, std::uint32_t choice);

}  // namespace ebb::gpu
