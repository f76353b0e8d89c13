// A checkpoint whose reads are counted on a status line: for whoever reads most of it once.
#pragma once

#include <cstdint>

#include "ebb/formats/catalog/catalog.h"
#include "tools/cli/transfer_line.h"

namespace ebb::tools {

// One thread reads.
class WatchedCheckpoint final : public Checkpoint {
 public:
  // Both are borrowed. `of`: so many bytes are to be read, of this and others of that line.
  WatchedCheckpoint(const Checkpoint& checkpoint, TransferLine& line, Transferred& so_far)
      : checkpoint_(checkpoint), line_(line), so_far_(so_far) {}
  const Catalog& catalog() const override { return checkpoint_.catalog(); }

 private:
  Result<> read_chunk(const TensorEntry& tensor, const Chunk& chunk, std::uint64_t first,
                      std::span<std::byte> into) const override;

  const Checkpoint& checkpoint_;
  TransferLine& line_;
  Transferred& so_far_;
};

}  // namespace ebb::tools
