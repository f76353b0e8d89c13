// ContentView: the tensors of a described checkpoint under other names, in other dtypes, scaled -
// as a checkpoint of its own, so that everything which reads a checkpoint reads the content of a
// conversion.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ebb/formats/catalog/catalog.h"

namespace ebb::formats {

// What a content tensor is made of.
struct MadeOf {
  std::uint32_t source_tensor = 0;  // of the same shape; of the same dtype, or both are floating
  double scale = 1;                 // 1, or both are floating
  // Instead of a source tensor: all elements, row-major. Held by rank 0, in no file.
  std::optional<ByteVector> constant = std::nullopt;
};

class ContentView : public Checkpoint {
 public:
  // Borrows the source. `content.tensors[i]` is made of `made_of[i]`; its chunks are the source's.
  ContentView(const Checkpoint& source, Catalog content, std::vector<MadeOf> made_of);

  const Catalog& catalog() const override { return content_; }
  // The same for two views of one source only if they make the same elements of it.
  std::string identity() const;
  // REQUIRES: `tensor` is one of catalog()'s; whole elements where they are cast.
  Result<> read_chunk(const TensorEntry& tensor, const Chunk& chunk, std::uint64_t first,
                      std::span<std::byte> into) const override;

 private:
  Result<> read_cast(const MadeOf& made_of, const TensorEntry& tensor, const Chunk& chunk,
                     std::uint64_t first, std::span<std::byte> into) const;

  const Checkpoint& source_;
  Catalog content_;
  std::vector<MadeOf> made_of_;
};

}  // namespace ebb::formats
