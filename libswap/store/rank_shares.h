// Which ranks page to which directory, where these lie on disks of different speed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ebb/formats/core/result.h"

namespace ebb::libswap {

// By rank: the number of its directory; neighbours share one. As many ranks for each as its weight
// gives it (D'Hondt), so that directories which are as fast as their weights say are done at the
// same time. Code::usage unless there is a directory and all weights are above zero.
Result<std::vector<std::uint32_t>> share_out(std::uint32_t ranks, std::span<const double> weights);

}  // namespace ebb::libswap
