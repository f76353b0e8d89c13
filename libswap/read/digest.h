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
formats::Result<std::string> sha256_of(const formats::Checkpoint& checkpoint,
                                       const formats::TensorEntry& tensor);

// The fingerprint of fingerprint.h, chunk by chunk in the order they are stored: it does not go
// through BoxReader, so it also checks what was read through one. Several workers, 4 at most, share
// the chunks of a large tensor. REQUIRES: coverage proven.
formats::Result<std::uint64_t> fingerprint_of(const formats::Checkpoint& checkpoint,
                                              const formats::TensorEntry& tensor);

struct TensorOf {
  const formats::Checkpoint* checkpoint = nullptr;
  const formats::TensorEntry* tensor = nullptr;  // one of the checkpoint's
};
// The same of many tensors, by several workers at a time, in order. `cancel` may be null.
formats::Result<std::vector<std::uint64_t>> fingerprints_of(std::span<const TensorOf> tensors,
                                                            std::uint32_t workers,
                                                            const std::atomic<bool>* cancel);

}  // namespace ebb::libswap
