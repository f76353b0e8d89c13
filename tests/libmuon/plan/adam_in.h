// What of a chunk's transits is AdamW's: behind those of matrices.
#pragma once

#include "ebb/libmuon/plan/chunks.h"

namespace ebb::libmuon {

inline std::span<const Transit> adam_in(const StatePlan& plan, std::span<const Transit> transits) {
  return transits.subspan(matrices_in(plan, transits).size());
}

}  // namespace ebb::libmuon
