#include "tools/pictures/layers.h"

#include <algorithm>
#include <array>

#include "ebb/formats/core/number_text.h"

namespace ebb::tools::pictures {
namespace {

constexpr std::array<std::string_view, 6> kWords = {"layers", "layer", "blocks",
                                                    "block",  "blk",   "h"};
constexpr std::uint64_t kMostStacked = 4096;  // more is no number of layers

bool is_word(std::string_view part) { return std::ranges::find(kWords, part) != kWords.end(); }

// Parts of a name, each with where it begins.
struct Part {
  std::string_view text;
  std::size_t at = 0;
};
std::vector<Part> parts_of(std::string_view name) {
  std::vector<Part> parts;
  for (std::size_t at = 0; at <= name.size();) {
    const std::size_t end = std::min(name.find_first_of("./", at), name.size());
    parts.push_back({name.substr(at, end - at), at});
    at = end + 1;
  }
  return parts;
}

// 3 of "layer_3" and "h3"; not of "fc3".
std::optional<std::uint64_t> number_behind_word(std::string_view part) {
  const std::size_t digits = part.find_first_of("0123456789");
  if (digits == std::string_view::npos) return std::nullopt;
  std::string_view word = part.substr(0, digits);
  if (word.ends_with('_')) word.remove_suffix(1);
  return is_word(word) ? formats::parse_number<std::uint64_t>(part.substr(digits)) : std::nullopt;
}

// "decoder.layers" of "decoder.layers.mlp.weight": where one tensor may be of all layers.
std::string_view stack_of(std::string_view name) {
  const std::vector<Part> parts = parts_of(name);
  for (std::size_t i = 0; i + 1 < parts.size(); ++i)
    if (parts[i].text == "layers" || parts[i].text == "blocks")
      return name.substr(0, parts[i].at + parts[i].text.size());
  return {};
}

}  // namespace

// A number behind a word for layers counts before any other number: "0.layers.3." is layer 3.
std::optional<Layer> layer_of(std::string_view name) {
  std::optional<Layer> first;
  std::string_view before;
  for (const Part& part : parts_of(name)) {
    const auto number = formats::parse_number<std::uint64_t>(part.text);
    const auto stack = [&](std::size_t end) { return std::string(name.substr(0, end)); };
    if (number) {
      Layer layer{stack(part.at == 0 ? 0 : part.at - 1), *number, *number};
      if (is_word(before)) return layer;
      if (!first) first = std::move(layer);
    } else if (const auto behind = number_behind_word(part.text)) {
      const std::size_t word = part.text.find_first_of("_0123456789");
      return Layer{stack(part.at + word), *behind, *behind};
    }
    before = part.text;
  }
  return first;
}

// Stacked are those that all have the same number of something along their first dimension.
Layers::Layers(std::span<const TensorEntry* const> tensors) {
  constexpr std::uint64_t kNotStacked = 0;
  for (const TensorEntry* tensor : tensors) {
    const std::string_view stack = stack_of(tensor->name);
    if (stack.empty() || layer_of(tensor->name)) continue;
    const std::uint64_t count = tensor->shape.size() < 2 ? kNotStacked : tensor->shape[0];
    const auto [at, added] = stacked_.try_emplace({tensor->state, stack}, count);
    if (at->second != count || count > kMostStacked) at->second = kNotStacked;
  }
  std::erase_if(stacked_, [](const auto& one) { return one.second == kNotStacked; });
}

std::int64_t Layers::number_of(Layer layer) {
  const auto [at, added] =
      numbers_.try_emplace(std::move(layer), static_cast<std::int64_t>(layers_.size()));
  if (added) layers_.push_back(&at->first);
  return at->second;
}

std::int64_t Layers::of(const TensorEntry& tensor) {
  auto layer = layer_of(tensor.name);
  return layer ? number_of(*std::move(layer)) : -1;
}

std::int64_t Layers::of(const TensorEntry& tensor, const Box& box) {
  if (stacked_in(tensor) == 0 || box.extent[0] == 0) return -1;
  return number_of(
      {std::string(stack_of(tensor.name)), box.offset[0], box.offset[0] + box.extent[0] - 1});
}

std::uint64_t Layers::stacked_in(const TensorEntry& tensor) const {
  const auto found = stacked_.find({tensor.state, stack_of(tensor.name)});
  return found == stacked_.end() || layer_of(tensor.name) ? 0 : found->second;
}

void Layers::write(JsonWriter& json) const {
  json.open_list();
  for (const Layer* layer : layers_)
    json.open_list().text(layer->stack).number(layer->first).number(layer->last).close_list();
  json.close_list();
}

}  // namespace ebb::tools::pictures
