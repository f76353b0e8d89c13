#include "tools/ckpt_inspect/renamed.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "ebb/formats/registry.h"

namespace ebb::tools::inspect {

namespace {

// Empty where a tensor has no key.
std::vector<std::string_view> sorted_keys(const Catalog& catalog) {
  std::vector<std::string_view> keys;
  for (const TensorEntry& tensor : catalog.tensors) {
    if (!tensor.key) return {};
    keys.push_back(*tensor.key);
  }
  std::sort(keys.begin(), keys.end());
  return keys;
}

std::vector<std::pair<std::string_view, std::string_view>> sorted_names(const Catalog& catalog) {
  std::vector<std::pair<std::string_view, std::string_view>> names;
  for (const TensorEntry& tensor : catalog.tensors) names.emplace_back(tensor.name, tensor.state);
  std::sort(names.begin(), names.end());
  return names;
}

bool is_state_dict(const Catalog& catalog) {
  return formats::format_of(catalog).traits().keys == formats::Keys::state_dict;
}

}  // namespace

// A state dict that went from one of its formats to another kept its keys.
Naming naming_for(const Catalog& left, const Catalog& right) {
  if (!is_state_dict(left) || !is_state_dict(right))
    return sorted_names(left) == sorted_names(right) ? Naming::stored : Naming::common;
  const std::vector<std::string_view> keys = sorted_keys(left);
  return !keys.empty() && keys == sorted_keys(right) ? Naming::keys : Naming::common;
}

Renamed::Renamed(const Checkpoint& stored, Naming naming)
    : stored_(stored), catalog_(stored.catalog()) {
  if (naming == Naming::stored) return;
  if (naming == Naming::keys) {
    for (TensorEntry& tensor : catalog_.tensors) {
      tensor.name = *tensor.key;
      tensor.state = "tensor";
    }
    return;
  }
  formats::format_of(catalog_).say_for_others(catalog_);
  auto names = formats::format_of(catalog_).common_names(stored.catalog());
  if (!names) return;
  catalog_.groups = std::move(names->groups);
  for (std::size_t i = 0; i < catalog_.tensors.size(); ++i)
    std::tie(catalog_.tensors[i].name, catalog_.tensors[i].state) = std::move(names->tensors[i]);
}

Result<> Renamed::read_chunk(const TensorEntry& tensor, const Chunk& chunk, std::uint64_t first,
                             std::span<std::byte> into) const {
  const auto number = static_cast<std::size_t>(&tensor - catalog_.tensors.data());
  return stored_.read(stored_.catalog().tensors[number], chunk, first, into);
}

std::vector<const TensorEntry*> Renamed::here(const std::vector<const TensorEntry*>& stored) const {
  const TensorEntry* first = stored_.catalog().tensors.data();
  std::vector<const TensorEntry*> out;
  for (const TensorEntry* tensor : stored) out.push_back(&catalog_.tensors[tensor - first]);
  return out;
}

}  // namespace ebb::tools::inspect
