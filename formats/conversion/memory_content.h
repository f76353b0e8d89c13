// MemoryContent: state that lies in this process's memory - a rank's shards - as a described
// checkpoint, so that everything which writes one writes this, in pieces: there is no second copy.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ebb/formats/catalog/catalog.h"

namespace ebb::formats {

// A box of a tensor that lies here: row-major, dense, little-endian.
struct Held {
  std::uint32_t tensor = 0;  // index into the catalog's tensors
  Box box;
  std::span<const std::byte> data;  // exactly its bytes
};

class MemoryContent : public Checkpoint {
 public:
  // `catalog` describes the whole state, of all ranks, the same on each of them: names, states,
  // dtypes and shapes of the tensors, groups, values, steps; its chunks and files are replaced by
  // what is held. A format keeps the tensors' keys and paths where `catalog.format` is its name,
  // elsewhere it makes its own of names and states. The memory is borrowed and must not change
  // while it is read. Code::layout when a box lies outside its tensor or the memory has another
  // size.
  static Result<MemoryContent> make(Catalog catalog, std::vector<Held> held);

  const Catalog& catalog() const override { return catalog_; }
  Result<> read_chunk(const TensorEntry& tensor, const Chunk& chunk, std::uint64_t first,
                      std::span<std::byte> into) const override;

 private:
  MemoryContent(Catalog catalog, std::vector<Held> held);

  Catalog catalog_;
  std::vector<Held> held_;  // by the chunks' tags
};

}  // namespace ebb::formats
