// Payload files in the safetensors serialization (torch 2.8 and newer, FileSystemWriter's
// serialization_format): archives of values, then one whole safetensors file with the rank's
// tensors. The index knows only where that file begins. Internal to formats/dcp.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/dcp/index.h"
#include "ebb/formats/safetensors/header.h"

namespace ebb::formats::dcp {

class RawItems {
 public:
  explicit RawItems(std::shared_ptr<const SourceTree> tree) : tree_(std::move(tree)) {}

  // Whether the index gives an item the length of its elements: an archive is always longer.
  static bool is_raw(const StoredItem& item, DType dtype, const Box& box);

  // Where the elements of one chunk lie in `file`. Code::incomplete when torch lost it: a file
  // holds one chunk of a tensor, the last one that the rank wrote.
  Result<std::uint64_t> offset_of(const std::string& file, const StoredItem& item,
                                  const std::string& key, DType dtype, const Box& box);

 private:
  struct Tensors {
    safetensors::Header header;
    Value places;  // {key: {"saved_offsets": [...]}}
    std::map<std::string_view, const safetensors::HeaderTensor*> by_key;
  };
  Result<const Tensors*> tensors_at(const std::string& file, std::uint64_t offset);

  std::shared_ptr<const SourceTree> tree_;
  std::map<std::pair<std::string, std::uint64_t>, std::unique_ptr<Tensors>> read_;
};

}  // namespace ebb::formats::dcp
