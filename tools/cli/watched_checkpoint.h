// A checkpoint whose reads are counted on a status line: for whoever reads most of it once.
#pragma once

#include <cstdint>
#include <string_view>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/libswap/sys/mutex.h"
#include "tools/cli/transfer_line.h"

namespace ebb::tools {

// Any number of threads read.
class WatchedCheckpoint final : public Checkpoint {
 public:
  // Borrows the checkpoint and the console. `doing`: as TransferLine has it; `bytes`: so many are
  // to be read.
  WatchedCheckpoint(const Checkpoint& checkpoint, Console& console, std::string_view doing,
                    std::uint64_t bytes)
      : checkpoint_(checkpoint), line_(console, doing), so_far_{.of = bytes} {}
  const Catalog& catalog() const override { return checkpoint_.catalog(); }

 private:
  Result<> read_chunk(const TensorEntry& tensor, const Chunk& chunk, std::uint64_t first,
                      std::span<std::byte> into) const override;

  const Checkpoint& checkpoint_;
  mutable libswap::Mutex mutex_;
  mutable TransferLine line_ EBB_GUARDED_BY(mutex_);
  mutable Transferred so_far_ EBB_GUARDED_BY(mutex_);
};

}  // namespace ebb::tools
