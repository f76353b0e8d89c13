// The metadata pickle of a DCP checkpoint to be written. Internal to formats/dcp.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/catalog/catalog.h"
#include "formats/core/bytes.h"

namespace formats {

struct DcpWrittenItem {
  std::string file;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
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

// Protocol 2, with the class paths and fields that torch 2.3 to 2.15 read: TensorProperties as a
// 5-tuple (releases before 2.15 refuse more), no transform fields, version "1.0.0".
ByteVector dcp_index_bytes(const std::vector<DcpWrittenTensor>& tensors,
                           const std::vector<DcpWrittenValue>& values);

}  // namespace formats
