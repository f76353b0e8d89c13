#include <algorithm>
#include <tuple>
#include <unordered_map>

#include "ebb/formats/core/check.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/dcp/index.h"

namespace ebb::formats::dcp {
namespace {

bool by_box(const StoredChunk& a, const StoredChunk& b) {
  return std::tie(a.box.offset, a.box.extent) < std::tie(b.box.offset, b.box.extent);
}

class Merger {
 public:
  Result<Index> run(std::vector<Index> parts) {
    into_.producer = parts.front().producer;
    for (Index& part : parts) {
      number_files(part);
      for (StoredTensor& tensor : part.tensors) EBB_TRY(add(std::move(tensor)));
      for (StoredValue& value : part.values) add(std::move(value));
      into_.flat_boxes_of.merge(part.flat_boxes_of);
      into_.ranks = std::max(into_.ranks, part.ranks);
      into_.notes.insert(into_.notes.end(), part.notes.begin(), part.notes.end());
    }
    for (StoredTensor& tensor : into_.tensors) drop_repeats(tensor.chunks);
    return std::move(into_);
  }

 private:
  void number_files(Index& part) {
    const auto first = static_cast<std::uint32_t>(into_.files.size());
    for (std::string& name : part.files) into_.files.push_back(std::move(name));
    for (StoredTensor& tensor : part.tensors)
      for (StoredChunk& chunk : tensor.chunks)
        if (chunk.item) chunk.item->file += first;
    for (StoredValue& value : part.values)
      if (value.item) value.item->file += first;
  }

  Result<> add(StoredTensor tensor) {
    const auto [known, fresh] = tensors_.try_emplace(tensor.key, into_.tensors.size());
    if (fresh) {
      into_.tensors.push_back(std::move(tensor));
      return {};
    }
    StoredTensor& have = into_.tensors[known->second];
    if (have.shape != tensor.shape || have.dtype != tensor.dtype)
      return Error{Code::layout, json_string(tensor.key) +
                                     ": two ranks' metadata disagree about its shape or dtype"};
    std::move(tensor.chunks.begin(), tensor.chunks.end(), std::back_inserter(have.chunks));
    return {};
  }

  void add(StoredValue value) {
    if (values_.try_emplace(value.key, into_.values.size()).second)
      into_.values.push_back(std::move(value));
  }

  static void drop_repeats(std::vector<StoredChunk>& chunks) {
    std::stable_sort(chunks.begin(), chunks.end(), by_box);
    const auto end = std::unique(chunks.begin(), chunks.end(),
                                 [](const auto& a, const auto& b) { return a.box == b.box; });
    chunks.erase(end, chunks.end());
  }

  Index into_;
  std::unordered_map<std::string, std::size_t> tensors_;
  std::unordered_map<std::string, std::size_t> values_;
};

}  // namespace

Result<Index> merged_index(std::vector<Index> parts) {
  EBB_CHECK(!parts.empty());
  return Merger().run(std::move(parts));
}

}  // namespace ebb::formats::dcp
