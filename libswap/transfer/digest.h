// What identifies a tensor's content whatever its shards look like. Memory: one run at a time.
#pragma once

#include <cstdint>
#include <string>

#include "formats/catalog/catalog.h"

namespace libswap {

// SHA-256, lower-case hex, of the whole logical tensor: row-major, little-endian.
formats::Result<std::string> sha256_of(const formats::Checkpoint& checkpoint,
                                       const formats::TensorEntry& tensor);

// The fingerprint of fingerprint.h, chunk by chunk in the order they are stored: it does not go
// through BoxReader, so it also checks what was read through one. REQUIRES: coverage proven.
formats::Result<std::uint64_t> fingerprint_of(const formats::Checkpoint& checkpoint,
                                              const formats::TensorEntry& tensor);

}  // namespace libswap
