// What Newton-Schulz takes beside the updates that it works on, and what is said where it fails.
#pragma once

#include <cstdint>
#include <span>

#include "ebb/libmuon/kernels/table.h"
#include "ebb/libmuon/plan/item.h"

namespace ebb::libmuon {

// Bytes where it is computed: of all batches of these items, one at a time, the one that needs the
// most. `accelerator`: null is the host.
std::uint64_t newton_schulz_need(const ModelSpec& model, std::span<const Item> items,
                                 const Accelerator* accelerator);

// What it makes of the parameter is not finite, on this rank.
Error not_finite(const ParamSpec& param, Rank rank);

}  // namespace ebb::libmuon
