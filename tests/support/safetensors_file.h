// safetensors files of a header that a test writes itself.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "ebb/formats/core/bytes.h"
#include "tests/support/source_tree.h"

namespace ebb::test_support {

// The header as it is, and so many zeros.
inline ByteVector safetensors_bytes(std::string_view header, std::size_t data_bytes = 0) {
  ByteVector bytes;
  formats::append_le<std::uint64_t>(bytes, header.size());
  formats::append_text(bytes, header);
  bytes.resize(bytes.size() + data_bytes);
  return bytes;
}

// One file without tensors; `metadata`: the fields of its __metadata__.
inline std::shared_ptr<MemoryTree> safetensors_with(const std::string& metadata) {
  auto tree = std::make_shared<MemoryTree>("t");
  tree->add("model.safetensors", safetensors_bytes("{\"__metadata__\":{" + metadata + "}}"));
  return tree;
}

}  // namespace ebb::test_support
