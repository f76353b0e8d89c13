// What a checkpoint to be written will consist of, before a byte moves: every format's emit() turns
// content + layout into files made of literal bytes and references to tensor boxes.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "formats/catalog/catalog.h"
#include "formats/layout/layout.h"

namespace formats {

// The decoded row-major elements of one box of one tensor of the content.
struct TensorData {
  std::uint32_t tensor = 0;  // index into EmitRequest::content.tensors
  Box box;
};
// Bytes of known size that need the CRC32 (zip's) of the TensorData fragment directly before them.
struct Sealed {
  std::uint64_t size = 0;
  std::function<ByteVector(std::uint32_t crc32_zip)> bytes;
};
struct Fragment {
  std::uint64_t offset = 0;  // in the file; fragments ascend; gaps are zeros
  std::variant<ByteVector, TensorData, Sealed> data;
};
struct OutputFile {
  std::string name;  // relative to the checkpoint directory
  std::uint64_t size = 0;
  Rank writer{};  // the rank that would write it in a distributed save
  std::vector<Fragment> fragments;
};
struct EmitPlan {
  std::vector<OutputFile> files;         // shards, any order
  std::vector<OutputFile> commit_files;  // written after all shards are durable, in this order
  std::vector<std::string> dropped;      // what the format cannot hold, one line each; never silent
};

struct EmitRequest {
  const Catalog& content;  // tensors (chunks are ignored), values, groups, step
  // How tensors are cut: one Layout over content.tensors in order.
  const Layout& layout;
};

}  // namespace formats
