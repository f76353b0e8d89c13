// Recovery: which generation all ranks resume (docs/formats/commit.md, "Recovery" 3 to 7).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "ebb/formats/native/manifest.h"
#include "ebb/libswap/store/agreement.h"
#include "ebb/libswap/store/rank_files.h"

namespace ebb::libswap {

struct Recovered {
  std::optional<formats::native::Manifest> manifest;  // nullopt: nothing was ever committed
  std::uint32_t region = 0;                           // of the manifest
  std::uint64_t next_generation = 1;                  // equal on all ranks
  // Something newer that is not whole on all ranks, in words; equal on all ranks.
  std::optional<std::string> passed_over;
};

// Collective. An error on one rank is an error on all: Code::peer on those that are well.
Result<Recovered> recover_generation(RankFiles& files, Agreement& ranks);

}  // namespace ebb::libswap
