// Which of two ways to make a symmetric product is faster here.
#pragma once

#include "plugins/cuda/products.h"

namespace ebb::cuda {

// KernelsTable::measure. It takes 130 MB of the device while it lasts.
Answer measure_symmetric(Products& products, unsigned processors, std::uint64_t* symmetric_from,
                         Why* why);

}  // namespace ebb::cuda
