// Which layer of its model a tensor belongs to, whatever a framework calls its layers: "layers.3.",
// "h.3.", "transformer/layer_3/", or one tensor for all of them, as Megatron stacks "layers" along
// the first dimension.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "tools/cli/json.h"

namespace ebb::tools::pictures {

struct Layer {
  std::string stack;  // what the layers are of: "model.layers"
  std::uint64_t first = 0, last = 0;
  auto operator<=>(const Layer&) const = default;
};

// As far as the name alone tells.
std::optional<Layer> layer_of(std::string_view name);

// The layers of some tensors, numbered as they are met.
class Layers {
 public:
  explicit Layers(std::span<const TensorEntry* const> tensors);

  // Of all of a tensor; -1: in none, or each piece is in its own.
  std::int64_t of(const TensorEntry& tensor);
  // Of a piece of a tensor that is in none as a whole; -1: in none.
  std::int64_t of(const TensorEntry& tensor, const Box& box);
  // How many layers lie in the tensor, along its first dimension; 0: it is no stack of them.
  std::uint64_t stacked_in(const TensorEntry& tensor) const;
  // [[stack, first, last], ...], in the order of their numbers.
  void write(JsonWriter& json) const;

 private:
  // Of state and stack: how many layers lie in each tensor.
  using Stacks = std::map<std::pair<std::string_view, std::string_view>, std::uint64_t>;

  std::int64_t number_of(Layer layer);

  Stacks stacked_;
  std::map<Layer, std::int64_t> numbers_;
  std::vector<const Layer*> layers_;
};

}  // namespace ebb::tools::pictures
