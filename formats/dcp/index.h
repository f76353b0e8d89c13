// The index of a DCP checkpoint as data: what `.metadata` says, all versions in one form. Internal
// to formats/dcp.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/core/result.h"
#include "ebb/formats/layout/box.h"
#include "ebb/formats/pickle/pickle.h"

namespace ebb::formats::dcp {

struct StoredItem {        // _StorageInfo
  std::uint32_t file = 0;  // index into Index::files
  std::uint32_t zstd = 0;  // how many times the bytes were compressed
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

struct StoredChunk {  // ChunkStorageMetadata
  Box box;
  std::optional<StoredItem> item;  // nullopt: storage_data has none for this key and offset
};

struct StoredTensor {  // TensorStorageMetadata
  std::string key;
  std::vector<PathItem> path;  // empty: none is recorded
  DType dtype = DType::f32;
  Shape shape;
  std::vector<StoredChunk> chunks;
};

struct StoredValue {  // BytesStorageMetadata
  std::string key;
  std::vector<PathItem> path;
  std::optional<StoredItem> item;
};

struct Index {
  std::vector<StoredTensor> tensors;
  std::vector<StoredValue> values;
  std::vector<std::string> files;  // the payload files
  // Megatron-core up to 0.15: tensors whose tensor-parallel boxes are stored flat, and their own
  // shapes (docs/formats/megatron.md, "flat boxes").
  std::unordered_map<std::string, Shape> flat_boxes_of;
  std::uint32_t ranks = 0;  // of the job that saved, where the index says so
  std::string producer;
  std::vector<std::string> notes;
};

// What the ids of saves begin with that this library wrote; torch's are random UUIDs.
inline constexpr std::string_view kOurSaves = "ebb-";

// Reads one metadata pickle. `graph` must have passed require_known_globals.
Result<Index> parse_index(const PickleGraph& graph);

// One index of those that ranks wrote of the same checkpoint, rank 0's first; what several list
// stays once, as the first has it. Keeps rank 0's producer. REQUIRES: at least one.
Result<Index> merged_index(std::vector<Index> parts);

}  // namespace ebb::formats::dcp
