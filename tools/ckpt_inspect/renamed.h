// A checkpoint under the names that mean the same in every format, for comparing it with one of
// another format.
#pragma once

#include <span>
#include <vector>

#include "formats/catalog/catalog.h"

namespace tools::inspect {

class Renamed : public formats::Checkpoint {
 public:
  explicit Renamed(const formats::Checkpoint& stored);  // borrowed
  const formats::Catalog& catalog() const override { return catalog_; }
  // REQUIRES: the tensor is one of catalog().
  formats::Result<> read(const formats::TensorEntry& tensor, const formats::Chunk& chunk,
                         std::uint64_t first, std::span<std::byte> into) const override;

  // The same tensors of this catalog. REQUIRES: they are of the one given.
  std::vector<const formats::TensorEntry*> here(
      const std::vector<const formats::TensorEntry*>& stored) const;

 private:
  const formats::Checkpoint& stored_;
  formats::Catalog catalog_;
};

}  // namespace tools::inspect
