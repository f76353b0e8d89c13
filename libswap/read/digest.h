// What identifies a tensor's content whatever its shards look like. Memory: a run of 4 MiB at most
// for each worker.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ebb/formats/catalog/catalog.h"

namespace ebb::libswap {

// SHA-256, lower-case hex, of the whole logical tensor: row-major, little-endian.
Result<std::string> sha256_of(const Checkpoint& checkpoint, const TensorEntry& tensor);

// The fingerprint of fingerprint.h, chunk by chunk in the order they are stored: it does not go
// through BoxReader, so it also checks what was read through one. Several workers, 4 at most, share
// the chunks of a large tensor. REQUIRES: coverage proven.
Result<std::uint64_t> fingerprint_of(const Checkpoint& checkpoint, const TensorEntry& tensor);

struct TensorOf {
  const Checkpoint* checkpoint = nullptr;
  const TensorEntry* tensor = nullptr;  // one of the checkpoint's
};
// The same of many tensors, by several workers at a time, in order. `cancel` may be null.
Result<std::vector<std::uint64_t>> fingerprints_of(std::span<const TensorOf> tensors,
                                                   std::uint32_t workers,
                                                   const std::atomic<bool>* cancel);

}  // namespace ebb::libswap
