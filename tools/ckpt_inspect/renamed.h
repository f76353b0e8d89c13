// A checkpoint under names that mean the same in another format, for comparing it with one of that.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ebb/formats/catalog/catalog.h"

namespace ebb::tools::inspect {

// The names that mean the same in every format; between torch's state dicts, the keys; or what both
// checkpoints call their tensors anyway: a format of keyed tensors keeps the names that it is
// given.
enum class Naming : std::uint8_t { common, keys, stored };
Naming naming_for(const Catalog& left, const Catalog& right);

class Renamed : public Checkpoint {
 public:
  Renamed(const Checkpoint& stored, Naming naming);  // borrowed
  const Catalog& catalog() const override { return catalog_; }
  // REQUIRES: the tensor is one of catalog().
  Result<> read_chunk(const TensorEntry& tensor, const Chunk& chunk, std::uint64_t first,
                      std::span<std::byte> into) const override;

  // The same tensors of this catalog. REQUIRES: they are of the one given.
  std::vector<const TensorEntry*> here(const std::vector<const TensorEntry*>& stored) const;

 private:
  const Checkpoint& stored_;
  Catalog catalog_;
};

}  // namespace ebb::tools::inspect
