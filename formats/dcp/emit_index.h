// The metadata pickle of a DCP checkpoint to be written. Internal to formats/dcp.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/catalog/emit.h"
#include "ebb/formats/core/bytes.h"

namespace ebb::formats {

struct DcpWrittenItem {
  std::uint32_t file = 0;    // number, among the names
  std::uint64_t number = 0;  // among the items of its file
};
struct DcpWrittenChunk {
  Box box;
  DcpWrittenItem item;
};
struct DcpWrittenTensor {
  std::string key;
  std::vector<PathItem> path;
  DType dtype = DType::f32;
  Shape shape;
  std::vector<DcpWrittenChunk> chunks;
};
struct DcpWrittenValue {
  std::string key;
  std::vector<PathItem> path;
  DcpWrittenItem item;
};

// What the items of a save are, in their files.
struct DcpWrittenFiles {
  std::vector<std::string> names;  // relative to the index
  ItemPlaces places;
  std::optional<Codec> codec;  // of every item
};

// Protocol 2, with the class paths and fields that torch 2.3 to 2.15 read: TensorProperties as a
// 5-tuple (releases before 2.15 refuse more), transform fields where items are compressed alone,
// version "1.0.0".
ByteVector dcp_index_bytes(const std::vector<DcpWrittenTensor>& tensors,
                           const std::vector<DcpWrittenValue>& values,
                           const DcpWrittenFiles& files);

}  // namespace ebb::formats
