#include "ebb/formats/conversion/memory_content.h"

#include <algorithm>

#include "ebb/formats/core/check.h"

namespace ebb::formats {

Result<MemoryContent> MemoryContent::make(Catalog catalog, std::vector<Held> held) {
  for (const TensorEntry& tensor : catalog.tensors) {
    if (!dtype_numbered(static_cast<std::uint8_t>(tensor.dtype)))
      return Error{Code::layout, compose("{}: there is no dtype {}", label_of(tensor),
                                         static_cast<unsigned>(tensor.dtype))};
    const auto elems = checked_volume(tensor.shape);
    if (!elems || !packed_bytes(tensor.dtype, *elems))
      return Error{Code::layout, compose("{}: shape {} has more than 2^64 bytes", label_of(tensor),
                                         to_string(tensor.shape))};
  }
  for (const Held& one : held) {
    if (one.tensor >= catalog.tensors.size())
      return Error{Code::layout, compose("tensor {} is held of a state that has {}", one.tensor,
                                         catalog.tensors.size())};
    const TensorEntry& tensor = catalog.tensors[one.tensor];
    if (!inside(one.box, tensor.shape))
      return Error{Code::layout, compose("{}: {} is held of a tensor of shape {}", label_of(tensor),
                                         to_string(one.box), to_string(tensor.shape))};
    const auto bytes = packed_bytes(tensor.dtype, volume(one.box.extent));
    const bool no_address = one.data.data() == nullptr && !one.data.empty();
    if (bytes != one.data.size() || no_address)
      return Error{Code::layout, compose("{}: the memory of {} has {} bytes{}, its elements {}",
                                         label_of(tensor), to_string(one.box), one.data.size(),
                                         no_address ? " and no address" : "", bytes.value_or(0))};
  }
  return MemoryContent(std::move(catalog), std::move(held));
}

MemoryContent::MemoryContent(Catalog catalog, std::vector<Held> held)
    : catalog_(std::move(catalog)), held_(std::move(held)) {
  catalog_.files.clear();
  for (TensorEntry& tensor : catalog_.tensors) tensor.chunks.clear();
  for (std::size_t i = 0; i < held_.size(); ++i)
    catalog_.tensors[held_[i].tensor].chunks.push_back(
        {.box = held_[i].box, .length = held_[i].data.size(), .tag = i});
}

Result<> MemoryContent::read_chunk(const TensorEntry&, const Chunk& chunk, std::uint64_t first,
                                   std::span<std::byte> into) const {
  EBB_CHECK(chunk.tag < held_.size());
  const std::span<const std::byte> data = held_[chunk.tag].data;
  EBB_CHECK(first <= data.size() && into.size() <= data.size() - first);
  std::copy_n(data.begin() + static_cast<std::ptrdiff_t>(first), into.size(), into.begin());
  return {};
}

}  // namespace ebb::formats
