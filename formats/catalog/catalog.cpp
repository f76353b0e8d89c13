#include "ebb/formats/catalog/catalog.h"

#include "ebb/formats/core/json_text.h"

namespace ebb::formats {

std::string label_of(const TensorEntry& tensor) {
  if (tensor.key) return printable(*tensor.key);
  if (tensor.state.empty()) return printable(tensor.name);
  return compose("{} ({})", printable(tensor.name), printable(tensor.state));
}

TensorEntry as_tensor(const UnreadEntry& unread) {
  TensorEntry tensor;
  tensor.key = unread.key;
  tensor.path = unread.path;
  tensor.name = unread.name;
  tensor.state = unread.state;
  return tensor;
}

Result<> Checkpoint::read(const TensorEntry& tensor, const Chunk& chunk, std::uint64_t first,
                          std::span<std::byte> into) const {
  const auto elems = checked_volume(chunk.box.extent);
  const auto bytes = elems ? packed_bytes(tensor.dtype, *elems) : std::nullopt;
  if (!bytes || first > *bytes || into.size() > *bytes - first)
    return Error{Code::usage,
                 compose("{}: {} bytes from {} on are wanted of the chunk {}, past its end",
                         label_of(tensor), into.size(), first, to_string(chunk.box))};
  if (into.empty()) return {};
  return read_chunk(tensor, chunk, first, into);
}

}  // namespace ebb::formats
