// Described checkpoints as one: their entries below keys of one state dict, their files one list.
// Internal to formats/folders.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/formats/catalog/catalog.h"

namespace ebb::formats::folders {

// Where a part's entries come to lie: below `key`, "" for the top, instead of below `instead_of`
// where all of them begin with that word.
struct Below {
  std::string key;
  std::string instead_of;
  std::string folder;  // of its files; "" for those on top
};

class JoinedCheckpoint : public Checkpoint {
 public:
  const Catalog& catalog() const override { return catalog_; }
  Catalog& building() { return catalog_; }

  // Takes over what the part holds, but for its groups, names, parts and notes: they follow from
  // the whole.
  void add(std::unique_ptr<Checkpoint> part, const Below& below);
  // A file of no tensors. Of names that are there already nothing changes.
  void add_file(FileEntry file);

 private:
  Result<> read_chunk(const TensorEntry& tensor, const Chunk& chunk, std::uint64_t first,
                      std::span<std::byte> into) const override;

  struct Held {
    std::uint32_t first_file = 0;  // in the catalog
    std::unique_ptr<Checkpoint> checkpoint;
  };
  Catalog catalog_;
  std::vector<Held> parts_;
};

}  // namespace ebb::formats::folders
