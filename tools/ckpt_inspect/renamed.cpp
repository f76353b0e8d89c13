#include "tools/ckpt_inspect/renamed.h"

#include <algorithm>
#include <iterator>
#include <tuple>

#include "formats/registry.h"

namespace tools::inspect {

using formats::TensorEntry;

Renamed::Renamed(const formats::Checkpoint& stored) : stored_(stored), catalog_(stored.catalog()) {
  const formats::Format* format = formats::format_named(catalog_.format);
  if (format == nullptr || format->common_names == nullptr) return;
  formats::CommonNames names = format->common_names(stored.catalog());
  catalog_.groups = std::move(names.groups);
  for (std::size_t i = 0; i < catalog_.tensors.size(); ++i)
    std::tie(catalog_.tensors[i].name, catalog_.tensors[i].state) = std::move(names.tensors[i]);
}

formats::Result<> Renamed::read(const TensorEntry& tensor, const formats::Chunk& chunk,
                                std::uint64_t first, std::span<std::byte> into) const {
  const auto number = static_cast<std::size_t>(&tensor - catalog_.tensors.data());
  return stored_.read(stored_.catalog().tensors[number], chunk, first, into);
}

std::vector<const TensorEntry*> Renamed::here(const std::vector<const TensorEntry*>& stored) const {
  const TensorEntry* first = stored_.catalog().tensors.data();
  std::vector<const TensorEntry*> out;
  std::transform(stored.begin(), stored.end(), std::back_inserter(out),
                 [&](const TensorEntry* tensor) { return &catalog_.tensors[tensor - first]; });
  return out;
}

}  // namespace tools::inspect
