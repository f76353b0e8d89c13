// A checkpoint of any size that lies nowhere: its elements are computed when they are read. What
// benchmarks and memory tests convert.
#pragma once

#include <cstdint>

#include "ebb/formats/catalog/catalog.h"

namespace ebb::bench {

// A transformer's matrices and vectors, trained with AdamW: bf16 weights, fp32 master weights and
// both moments, one chunk each. Thread-safe.
class SyntheticCheckpoint : public Checkpoint {
 public:
  // About that many bytes, at least one layer.
  explicit SyntheticCheckpoint(std::uint64_t bytes);

  const Catalog& catalog() const override { return catalog_; }
  Result<> read_chunk(const TensorEntry& tensor, const Chunk& chunk, std::uint64_t first,
                      std::span<std::byte> into) const override;

 private:
  std::uint64_t add(const std::string& name, const Shape& shape);  // bytes

  Catalog catalog_;
};

}  // namespace ebb::bench
