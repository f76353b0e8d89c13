// What a device does in how long: the least of several rounds, of the wall's clock, from the first
// call to the event behind the last.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ebb/libmuon/kernels/plugin_kernels.h"

namespace ebb::gpu {

struct Measured {
  std::string what;
  double seconds = 0;
  double bytes = 0, flops = 0;  // moved, and counted in the standard form; zero: not said
};

// The device, its kernels, and a pool for those of the host that nobody uses.
struct Bench {
  static Result<Bench> open(const std::string& plugin);
  std::unique_ptr<libswap::PluginDevice> device;
  std::unique_ptr<libmuon::Accelerator> accelerator;
  std::unique_ptr<libswap::Pool> pool;
  std::unique_ptr<libmuon::Kernels> kernels;
};

Result<std::vector<Measured>> measure_copies(Bench& bench);
// Each kernel over `elems` elements.
Result<std::vector<Measured>> measure_elementwise(Bench& bench, std::uint64_t elems);
// A preset's Newton-Schulz of `count` matrices.
Result<Measured> measure_newton_schulz(Bench& bench, const std::string& preset, std::uint64_t rows,
                                       std::uint64_t cols, std::uint64_t count);

}  // namespace ebb::gpu
