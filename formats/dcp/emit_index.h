// The metadata pickle of a DCP checkpoint to be written. Internal to formats/dcp.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/catalog/emit.h"
#include "ebb/formats/core/bytes.h"

namespace ebb::formats::dcp {

struct WrittenItem {
  std::uint32_t file = 0;    // number, among the names
  std::uint64_t number = 0;  // among the items of its file
};
struct WrittenChunk {
  Box box;
  WrittenItem item;
};
struct WrittenTensor {
  std::string key;
  std::vector<PathItem> path;
  DType dtype = DType::f32;
  Shape shape;
  std::vector<WrittenChunk> chunks;
};
struct WrittenValue {
  std::string key;
  std::vector<PathItem> path;
  WrittenItem item;
};

// What the items of a save are, in their files.
struct WrittenFiles {
  std::vector<std::string> names;  // relative to the index
  ItemPlaces places;
  std::optional<Codec> codec;  // of every item
};

// Protocol 2, with the class paths and fields that torch 2.3 to 2.15 read: TensorProperties as a
// 5-tuple (releases before 2.15 refuse more), transform fields where items are compressed alone,
// version "1.0.0".
ByteVector index_bytes(const std::vector<WrittenTensor>& tensors,
                       const std::vector<WrittenValue>& values, const WrittenFiles& files);

}  // namespace ebb::formats::dcp
