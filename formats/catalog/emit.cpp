#include "ebb/formats/catalog/emit.h"

namespace ebb::formats {

DType written_dtype(const TensorData& data, const Catalog& content) {
  return data.as.value_or(content.tensors[data.tensor].dtype);
}

OutputFile literal_file(std::string name, ByteVector bytes) {
  OutputFile file{.name = std::move(name), .size = bytes.size()};
  // In place: GCC 12 takes a moved variant's other members for uninitialised ones.
  Fragment& all = file.fragments.emplace_back();
  all.data = std::move(bytes);
  return file;
}

std::uint64_t size_of(const Fragment& fragment, const Catalog& content) {
  if (const auto* bytes = std::get_if<ByteVector>(&fragment.data)) return bytes->size();
  if (const auto* sealed = std::get_if<formats::Sealed>(&fragment.data)) return sealed->size;
  const auto& data = std::get<TensorData>(fragment.data);
  const auto size =
      formats::packed_bytes(written_dtype(data, content), formats::volume(data.box.extent));
  EBB_CHECK(size.has_value());  // check_plan has seen it
  return *size;
}

}  // namespace ebb::formats
