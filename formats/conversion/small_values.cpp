#include "ebb/formats/conversion/small_values.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <set>

#include "ebb/formats/core/float_cast.h"
#include "ebb/formats/core/sha256.h"
#include "ebb/formats/state_dict/small_tensors.h"
#include "ebb/formats/state_dict/state_dict.h"

namespace ebb::formats {

std::vector<std::uint32_t> small_numbers(const Catalog& content,
                                         std::span<const std::uint32_t> tensors) {
  std::vector<std::uint32_t> numbers;
  std::ranges::copy_if(tensors, std::back_inserter(numbers), [&](std::uint32_t number) {
    const TensorEntry& tensor = content.tensors[number];
    return tensor.state == "tensor" && !is_floating(tensor.dtype) && is_small(tensor);
  });
  return numbers;
}

Result<Catalog> with_values(const ContentView& view, const std::vector<std::uint32_t>& tensors,
                            std::vector<MadeOf>& made_of) {
  Catalog content = view.catalog();
  for (const std::uint32_t number : tensors) {
    const TensorEntry& tensor = view.catalog().tensors[number];
    Value value;
    value.kind = Value::Kind::tensor;
    value.dtype = tensor.dtype;
    value.raw.resize(volume(tensor.shape) * bytes_of(tensor.dtype));
    EBB_TRY(view.read(tensor, tensor.chunks.front(), 0, value.raw));
    value.text = sha256_hex(value.raw);
    for (const std::uint64_t extent : tensor.shape)
      value.items.push_back(Value::of_int(static_cast<std::int64_t>(extent)));
    content.values.push_back({tensor.name, {tensor.name}, std::move(value)});
  }
  for (const std::uint32_t number :
       std::set<std::uint32_t, std::greater<>>(tensors.begin(), tensors.end())) {
    content.tensors.erase(content.tensors.begin() + number);
    made_of.erase(made_of.begin() + number);
  }
  for (TensorEntry& tensor : content.tensors) tensor.chunks.clear();
  return content;
}

void move_to_tensors(Catalog& content, std::vector<MadeOf>& made_of) {
  const std::set<std::string> listed = other_tensors(content);
  std::erase_if(content.values, [&](ValueEntry& entry) {
    if (entry.value.kind != Value::Kind::tensor || !listed.contains(entry.key)) return false;
    TensorEntry tensor{.name = entry.key, .state = "tensor"};
    tensor.dtype = entry.value.dtype;
    for (const Value& extent : entry.value.items)
      tensor.shape.push_back(static_cast<std::uint64_t>(extent.integer));
    if (entry.value.raw.size() * 8 != volume(tensor.shape) * bits_of(tensor.dtype)) return false;
    MadeOf made;
    made.constant = std::move(entry.value.raw);
    content.tensors.push_back(std::move(tensor));
    made_of.push_back(std::move(made));
    return true;
  });
}

}  // namespace ebb::formats
