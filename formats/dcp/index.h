// The index of a DCP checkpoint as data: what `.metadata` says, all versions in one form. Internal
// to formats/dcp.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "formats/catalog/catalog.h"
#include "formats/core/result.h"
#include "formats/layout/box.h"
#include "formats/torch/pickle.h"

namespace formats {

struct DcpItem {           // _StorageInfo
  std::uint32_t file = 0;  // index into DcpIndex::files
  std::uint32_t zstd = 0;  // how many times the bytes were compressed
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

struct DcpTensor {  // TensorStorageMetadata
  std::string key;
  DType dtype = DType::f32;
  Shape shape;
  std::vector<Box> chunks;
};

struct DcpIndex {
  std::vector<DcpTensor> tensors;
  std::vector<std::string> values;  // keys of BYTE_IO items
  std::unordered_map<std::string, std::vector<PathItem>> paths;
  std::unordered_map<std::string, DcpItem> items;  // by item_key
  std::vector<std::string> files;                  // the payload files
  // Megatron-core up to 0.15: tensors whose tensor-parallel boxes are stored flat, and their own
  // shapes (docs/formats/megatron.md, "flat boxes").
  std::unordered_map<std::string, Shape> flat_boxes_of;
  std::uint32_t ranks = 0;  // of the job that saved, where the index says so
  std::string producer;
  std::vector<std::string> notes;

  // What torch calls a MetadataIndex: a key and, for tensors, the chunk's offset.
  static std::string item_key(std::string_view key, const std::vector<std::uint64_t>* offset);
  const DcpItem* item(std::string_view key, const std::vector<std::uint64_t>* offset) const;
};

// Reads one metadata pickle. `graph` must have passed require_known_globals.
Result<DcpIndex> read_dcp_index(const PickleGraph& graph);

// Adds the chunks and items of another rank's index of the same checkpoint; what both list stays
// once.
Result<> merge_dcp_index(DcpIndex& into, DcpIndex other);

}  // namespace formats
