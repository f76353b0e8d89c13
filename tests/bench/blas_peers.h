// Products of matrices by libraries that are looked for when the program runs: oneDNN, on as many
// cores as one says, and OpenBLAS without threads. What a benchmark compares with.
#pragma once

#include <cstdint>
#include <span>

#include "ebb/formats/core/result.h"

namespace ebb::bench {

enum class Blas : std::uint8_t { onednn, openblas };

// Five steps of Newton-Schulz in its standard form on fp32, in the fewest calls of a library's
// sgemm and with nothing else but the norm: rows x cols, rows <= cols, in `x`. Code::unsupported
// where the library is not installed, Code::unsupported for OpenBLAS on more than one core.
Result<> five_steps(Blas blas, std::uint32_t cores, std::uint64_t rows, std::uint64_t cols,
                    std::span<float> x);

}  // namespace ebb::bench
