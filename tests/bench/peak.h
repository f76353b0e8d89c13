// What the processor's registers give: multiply-adds without a load.
#pragma once

#include "ebb/libmuon/kernels/products.h"

namespace ebb::bench {

// Floating-point operations a second on each of so many cores at once, all together; 0 where there
// are no such operands.
double peak_rate(libmuon::Operands operands, std::uint32_t cores);

}  // namespace ebb::bench
