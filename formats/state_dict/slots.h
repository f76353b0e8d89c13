// Keys that may be an optimizer's "<place>.state.<name>.<state>", and whether what lies at a place
// looks like the state of one. Internal to formats/state_dict.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "ebb/formats/layout/shape.h"
#include "ebb/formats/state_dict/key_split.h"

namespace ebb::formats {

struct Slot {
  std::size_t name_at = 0;   // where the parameter's name begins in the key
  std::size_t name_end = 0;  // where it ends; the state is behind the dot

  std::string_view name(std::string_view key) const {
    return key.substr(name_at, name_end - name_at);
  }
  std::string_view state(std::string_view key) const { return key.substr(name_end + 1); }
};

// nullopt: too little stands behind "state" for a name and a state.
std::optional<Slot> slot_at(const KeyPath& key, const KeySplit& split);

// The words that are said of models, and of nothing else.
bool is_model_word(std::string_view word);

// All that lies below a "state" without param_groups beside it.
struct SlotsOfPlace {
  std::size_t tensors = 0;
  std::pair<std::size_t, KeySplit> first;  // a tensor's number, and its cut

  void add(std::string_view name, std::string_view state, const Shape& shape);
  // `at`: the place; "" is the top, where nothing but the look of it tells.
  bool is_optimizer(std::string_view at) const;

 private:
  bool looks_like_one() const;

  std::map<std::string_view, std::set<Shape>> shapes_of_;  // of a name; those of one element: none
  std::map<std::string_view, std::size_t> names_with_;     // a state
};

}  // namespace ebb::formats
