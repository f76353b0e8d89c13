#include "tools/cli/watched_checkpoint.h"

#include <algorithm>

namespace ebb::tools {

Result<> WatchedCheckpoint::read_chunk(const TensorEntry& tensor, const Chunk& chunk,
                                       std::uint64_t first, std::span<std::byte> into) const {
  auto read = checkpoint_.read(tensor, chunk, first, into);
  const libswap::MutexLock lock(mutex_);
  so_far_.bytes = std::min(so_far_.of, so_far_.bytes + into.size());
  line_.now(so_far_);
  return read;
}

}  // namespace ebb::tools
