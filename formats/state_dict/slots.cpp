#include "ebb/formats/state_dict/slots.h"

#include <algorithm>
#include <array>

namespace ebb::formats {
namespace {

bool is_number(std::string_view text) {
  return text.find_first_not_of("0123456789") == std::string_view::npos;
}

}  // namespace

std::optional<Slot> slot_at(const KeyPath& key, const KeySplit& split) {
  Slot slot{split.rest, 0};
  if (split.keys == KeySplit::Keys::nested) {
    if (split.item + 2 >= key.items()) return std::nullopt;
    slot.name_end = key.start(split.item + 2) - 1;
    return slot;
  }
  const bool in_list = split.item + 1 < key.items();
  slot.name_end =
      key.key().rfind('.', in_list ? key.start(split.item + 1) - 2 : std::string_view::npos);
  return slot.name_end > split.rest ? std::optional(slot) : std::nullopt;
}

bool is_model_word(std::string_view word) {
  constexpr std::array<std::string_view, 4> kWords = {"model", "state_dict", "model_state_dict",
                                                      "module"};
  return std::ranges::find(kWords, word) != kWords.end();
}

void SlotsOfPlace::add(std::string_view name, std::string_view state, const Shape& shape) {
  ++tensors;
  std::set<Shape>& shapes = shapes_of_[name];
  if (volume(shape) != 1) shapes.insert(shape);
  ++names_with_[state];
}

// A parameter that is called "model" is one only where an optimizer's groups are there to list it.
bool SlotsOfPlace::is_optimizer(std::string_view at) const {
  const bool holds_model =
      std::ranges::any_of(shapes_of_, [](const auto& one) { return is_model_word(one.first); });
  return !holds_model && (!at.empty() || looks_like_one());
}

// Numbers, or names most of which have the same few states, all of one shape. The parts of a
// trainer's state, and the layers of a model, are not like that.
bool SlotsOfPlace::looks_like_one() const {
  constexpr std::size_t kFewStates = 16;
  if (std::ranges::all_of(shapes_of_, [](const auto& one) { return is_number(one.first); }))
    return true;
  std::size_t alone = 0, many_shaped = 0;
  for (const auto& [state, names] : names_with_) alone += names == 1 ? 1 : 0;
  for (const auto& [name, shapes] : shapes_of_) many_shaped += shapes.size() > 1 ? 1 : 0;
  const std::size_t names = shapes_of_.size();
  const bool shared = names == 1 || 2 * alone <= tensors;
  return shared && names_with_.size() <= std::max(kFewStates, names) && 2 * many_shaped <= names;
}

}  // namespace ebb::formats
