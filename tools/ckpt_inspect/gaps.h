// Where a tensor is stored too seldom or too often, for whoever draws it: prove_coverage() says
// whether and names the first place; this finds all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ebb/formats/catalog/catalog.h"

namespace ebb::tools::inspect {

// all: nothing but what is listed. some: there may be more; to look for it would take too long.
enum class Found : std::uint8_t { all, some };

struct Gaps {
  struct Twice {
    std::size_t chunk = 0;  // of TensorEntry::chunks; its elements lie in one before it, too
    std::size_t before = 0;
    Box box;  // what both hold
  };
  std::vector<Box> holes;
  std::vector<Twice> twice;
  Found found = Found::all;
};

// Takes time with the number of chunks where they come in row-major order.
Gaps gaps_of(const TensorEntry& tensor);

}  // namespace ebb::tools::inspect
