// Who gets what from whom: each region that one rank of the source holds and one rank of the result
// is to hold. Ranks are the same when they have the same number.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "tools/ckpt_convert/conversion.h"

namespace ebb::tools::convert {

struct Transfer {
  std::uint32_t tensor = 0;     // of the content
  const Chunk* from = nullptr;  // of the source
  const OutputFile* to = nullptr;
  std::uint64_t offset = 0;  // in that file, where the fragment begins that the region is in
  Box region;
  std::uint64_t bytes = 0;  // as they are written
};

using Flow = std::pair<Rank, Rank>;  // from, to

struct Transfers {
  std::vector<Transfer> all;            // by file of the result, in its order
  std::map<Flow, std::uint64_t> flows;  // bytes
  std::uint64_t staying_bytes = 0, moving_bytes = 0;
};

// Of the plan alone: no element is read.
Transfers transfers_of(const formats::Conversion& conversion);

}  // namespace ebb::tools::convert
