// Two places of torch.save files that should hold the same elements: replicas of several ranks.
// For readers of such files.
#pragma once

#include <memory>

#include "ebb/formats/torch/torch_file.h"

namespace ebb::formats::torch_save {

struct StoredCopy {
  TorchTensor tensor;
  StoredRecord record;
  std::shared_ptr<const ByteSource> source;
  ByteOrder order = ByteOrder::little;
};

// By the checksums of the records where these tell, else by the elements, a block at a time: so
// many bytes at most, which is what is left of `budget` (Code::limit beyond it).
Result<bool> same_elements(const StoredCopy& one, const StoredCopy& other, std::uint64_t& budget);

// Bytes [first, first + into.size()) of its elements, row-major and little-endian. REQUIRES: there
// are so many.
Result<> read_copy(const StoredCopy& copy, std::uint64_t first, std::span<std::byte> into);

}  // namespace ebb::formats::torch_save
