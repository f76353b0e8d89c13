// Save: the ranks of a trainer write one checkpoint together, each what lies in its memory; nothing
// is gathered, no tensor travels. Every rank makes the same plan from what all of them know - the
// whole state's description and how it is cut - and writes the files that the plan gives to it.
//
// The protocol is write_checkpoint's, with these meetings; "agree" is one Agreement::agree that
// every rank comes to whatever happened to it, so that an error on one rank is an error on all:
//   a. all: make the plan and check it; agree on success and on the plan's hash.
//   b. rank 0: steps 1 to 3 (checks, temporary directory); agree; its id goes to all.
//   c. all: steps 4 and 5 for their own files; agree.
//   d. rank 0: step 5, commit files, publication (6 to 11); agree.
// The destination appears whole or not at all. Whatever fails, rank 0 removes the directory when no
// rank writes into it any more. A crash of some rank leaves what write_checkpoint's crash leaves.
// A rank that dies without coming to a meeting is for the Agreement to notice.
#pragma once

#include <cstdint>

#include "ebb/formats/core/units.h"
#include "ebb/formats/layout/layout.h"
#include "ebb/formats/registry.h"
#include "ebb/libswap/store/agreement.h"
#include "ebb/libswap/write/write_checkpoint.h"

namespace ebb::libswap {

struct SaveRequest {
  const formats::Format& format;
  Rank rank{};  // this one
  std::uint32_t world = 1;
  // How the state is cut over the ranks: what this one writes must be in its content.
  Policy policy = Policy::rows;
  // source_identity and check mean nothing here: what is interrupted leaves nothing. Smaller
  // buffers than a conversion's: several ranks share a machine, where fresh pages cost more than
  // filling them, and what lies in a core's cache is copied, hashed and checksummed there.
  WriteOptions write = {.workers = 4, .segment_bytes = std::uint64_t{1} << 20};
};

// [Collective] All ranks with the same request but for `rank`, the same description in `content`
// (memory_content.h) and paths that mean the same directory. Blocks. The report speaks of what this
// rank wrote. Errors: those of plan_conversion and write_checkpoint; peer (another rank failed; its
// message says why), layout (the ranks' plans differ), incomplete (this rank does not hold what it
// is to write), unsupported (the format's last files depend on what all ranks wrote: convert to it
// afterwards).
Result<WriteReport> save(IoQueue& io, Agreement& ranks, const Checkpoint& content,
                         const SaveRequest& request, const fs::path& destination);

}  // namespace ebb::libswap
