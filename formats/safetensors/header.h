// One safetensors file's header: u64le N | N bytes of JSON | data. Source of the rules:
// safetensors/src/tensor.rs; stricter than the library where parsers differ (docs/formats).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ebb/formats/core/byte_source.h"
#include "ebb/formats/core/dtype.h"
#include "ebb/formats/layout/box.h"

namespace ebb::formats::safetensors {

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
constexpr std::size_t kMaxKeyBytes = 64 * 1024;
constexpr std::size_t kMaxDims = 64;

struct HeaderTensor {
  std::string key;
  DType dtype = DType::f32;
  Shape shape;
  std::uint64_t begin = 0, end = 0;  // bytes, relative to data_start
};

struct MetadataText {
  std::string key;
  std::string text;
  std::uint64_t offset = 0;  // of the text's quote in the file
};

struct Header {
  std::vector<MetadataText> metadata;  // in the file's order
  std::vector<HeaderTensor> tensors;   // in the file's order
  std::uint64_t data_start = 0;

  const MetadataText* find_metadata(std::string_view key) const;
};

// Fails with Code::corrupt, incomplete, unsupported (dtype) or limit; messages hold file:offset.
Result<Header> read_header(const ByteSource& source);

// Bytes of the elements; fails when they do not fit 64 bits or are not whole bytes (F4, F6).
Result<std::uint64_t> tensor_bytes(DType dtype, const Shape& shape);

}  // namespace ebb::formats::safetensors
