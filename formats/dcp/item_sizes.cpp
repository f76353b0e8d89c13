#include "ebb/formats/dcp/item_sizes.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string_view>

#include "ebb/formats/state_dict/numbers.h"

namespace ebb::formats::dcp {
namespace {

// Bytes of an item beside its elements, as the index has it.
std::int64_t bytes_beside(const TensorEntry& tensor, const Chunk& chunk) {
  const std::uint64_t bytes = volume(chunk.box.extent) * bytes_of(tensor.dtype);
  return static_cast<std::int64_t>(chunk.length) - static_cast<std::int64_t>(bytes);
}

}  // namespace

std::vector<const Chunk*> extreme_items(const std::vector<TensorEntry>& tensors) {
  constexpr std::size_t kMostWords = 64;  // and one for the rest
  struct Item {
    std::int64_t beside = 0;
    const Chunk* chunk = nullptr;
  };
  std::map<std::string_view, std::pair<Item, Item>> words;
  for (const TensorEntry& tensor : tensors) {
    const std::string_view key = *tensor.key;
    std::string_view word = key.substr(key.rfind('.') + 1);
    if (is_index(word) || (words.size() >= kMostWords && !words.contains(word))) word = "";
    for (const Chunk& chunk : tensor.chunks) {
      if (chunk.tag != 0) continue;
      const Item item{bytes_beside(tensor, chunk), &chunk};
      auto& [fewest, most] = words.try_emplace(word, item, item).first->second;
      if (item.beside < fewest.beside) fewest = item;
      if (item.beside > most.beside) most = item;
    }
  }
  std::vector<const Chunk*> chunks;
  for (const auto& [word, ends] : words)
    for (const Item& item : {ends.first, ends.second}) chunks.push_back(item.chunk);
  return chunks;
}

const Chunk& least_like_the_first(const TensorEntry& tensor) {
  const std::int64_t first = bytes_beside(tensor, tensor.chunks.front());
  return *std::ranges::max_element(tensor.chunks, {}, [&](const Chunk& chunk) {
    return std::abs(bytes_beside(tensor, chunk) - first);
  });
}

}  // namespace ebb::formats::dcp
