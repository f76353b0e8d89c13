// A DCP directory as what it is, for formats that are DCP underneath. Internal to formats.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/core/result.h"

namespace ebb::formats {

struct OpenedDcp {
  // As describe_dcp gives it, but every tensor is (key, "tensor"), and values are mere values. Its
  // read() needs of a tensor the key and dtype, of a chunk the box's
  // extent and the place: entries put together by the caller are read as well as its own.
  std::unique_ptr<Checkpoint> checkpoint;
  std::unordered_map<std::string, Shape> flat_boxes_of;  // see DcpIndex
};
Result<OpenedDcp> open_dcp(std::shared_ptr<const SourceTree> tree);

}  // namespace ebb::formats
