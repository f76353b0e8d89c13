// The elements that a rank holds of a parameter in a layout, and where they lie in its buffer.
#pragma once

#include <cstdint>

#include "ebb/libmuon/plan/model_layout.h"

namespace ebb::test {

// take(element, place among what the rank holds).
template <typename Take>
void for_elements(const libmuon::ModelLayout& layout, std::uint32_t param, Rank rank,
                  const Take& take) {
  std::uint64_t place = 0;
  for (const FlatRange run : layout.runs(param, rank))
    for (std::uint64_t i = 0; i < run.count; ++i) take(run.first + i, place++);
}

}  // namespace ebb::test
