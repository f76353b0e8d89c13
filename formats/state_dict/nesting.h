// Entries of a state dict as the object they nest into.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <variant>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/core/result.h"

namespace ebb::formats {

// Places with parents and children; dicts keep the order in which their keys came.
class Nesting {
 public:
  using Leaf = std::variant<std::uint32_t, const Value*>;  // a content tensor's number, or a value
  enum class Kind : std::uint8_t { dict, list, tuple };
  struct Place {
    std::variant<std::monostate, Leaf, Kind> what;  // monostate: what its children make of it
    std::vector<std::pair<PathItem, std::size_t>> children;  // numbers of places
  };

  // Code::layout when something is there already, or above it; Code::limit for a path of more
  // than 256 items. A value is borrowed.
  Result<> add(const std::vector<PathItem>& path, Leaf leaf);
  // What the children alone do not tell. Code::layout when a leaf is there.
  Result<> add(const ContainerEntry& container);

  const Place& root() const { return places_.front(); }
  const Place& at(std::size_t number) const { return places_[number]; }
  // Children that count from 0 with few gaps are a list's, unless somebody says otherwise.
  static Kind kind_of(const Place& place);

 private:
  Result<std::size_t> reach(const std::vector<PathItem>& path);

  std::deque<Place> places_{1};
  std::map<std::pair<std::size_t, PathItem>, std::size_t> numbers_;  // {parent, item}
};

}  // namespace ebb::formats
