#include <algorithm>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "ebb/formats/core/check.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/dcp/index.h"

namespace ebb::formats::dcp {
namespace {

bool by_box(const StoredChunk& a, const StoredChunk& b) {
  return std::tie(a.box.offset, a.box.extent) < std::tie(b.box.offset, b.box.extent);
}

void number_files_from(std::size_t first, Index& part) {
  const auto count = static_cast<std::uint32_t>(first);
  for (StoredTensor& tensor : part.tensors)
    for (StoredChunk& chunk : tensor.chunks)
      if (chunk.item) chunk.item->file += count;
  for (StoredValue& value : part.values)
    if (value.item) value.item->file += count;
}

void drop_repeats(std::vector<StoredChunk>& chunks) {
  std::ranges::stable_sort(chunks, by_box);
  const auto repeats = std::ranges::unique(chunks, {}, &StoredChunk::box);
  chunks.erase(repeats.begin(), repeats.end());
}

}  // namespace

Result<Index> merged_index(std::vector<Index> parts) {
  EBB_CHECK(!parts.empty());
  Index into;
  std::unordered_map<std::string, std::size_t> tensors;
  std::unordered_set<std::string> values;
  into.producer = parts.front().producer;
  for (Index& part : parts) {
    number_files_from(into.files.size(), part);
    std::ranges::move(part.files, std::back_inserter(into.files));
    for (StoredTensor& tensor : part.tensors) {
      const auto [known, fresh] = tensors.try_emplace(tensor.key, into.tensors.size());
      if (fresh) {
        into.tensors.push_back(std::move(tensor));
        continue;
      }
      StoredTensor& have = into.tensors[known->second];
      if (have.shape != tensor.shape || have.dtype != tensor.dtype)
        return Error{Code::layout, json_string(tensor.key) +
                                       ": two ranks' metadata disagree about its shape or dtype"};
      std::ranges::move(tensor.chunks, std::back_inserter(have.chunks));
    }
    for (StoredValue& value : part.values)
      if (values.insert(value.key).second) into.values.push_back(std::move(value));
    into.flat_boxes_of.merge(part.flat_boxes_of);
    into.ranks = std::max(into.ranks, part.ranks);
    into.notes.insert(into.notes.end(), part.notes.begin(), part.notes.end());
  }
  for (StoredTensor& tensor : into.tensors) drop_repeats(tensor.chunks);
  return into;
}

}  // namespace ebb::formats::dcp
