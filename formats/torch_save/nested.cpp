#include "ebb/formats/torch_save/nested.h"

#include <utility>

#include "ebb/formats/catalog/composite.h"

namespace ebb::formats::torch_save {
namespace {

class NestedWriter {
 public:
  NestedWriter(PickleWriter& file, const Nesting& nesting,
               const std::function<void(const Nesting::Leaf&)>& leaf)
      : file_(file), nesting_(nesting), leaf_(leaf) {}

  void write(const Nesting::Place& place) {
    if (const auto* leaf = std::get_if<Nesting::Leaf>(&place.what)) return leaf_(*leaf);
    switch (Nesting::kind_of(place)) {
      case Nesting::Kind::dict:
        return file_.dict([&] { write_entries(place); });
      case Nesting::Kind::list:
        return file_.list([&] { write_positions(place); });
      case Nesting::Kind::tuple:
        return file_.tuple([&] { write_positions(place); });
    }
  }

 private:
  void write_entries(const Nesting::Place& place) {
    for (const auto& [item, child] : place.children) {
      if (const auto* text = std::get_if<std::string>(&item))
        file_.string(*text);
      else
        file_.integer(std::get<std::int64_t>(item));
      write(nesting_.at(child));
    }
  }

  // Positions that nothing came for are None.
  void write_positions(const Nesting::Place& place) {
    std::map<std::int64_t, std::size_t> by_position;
    for (const auto& [item, child] : place.children)
      by_position.emplace(std::get<std::int64_t>(item), child);
    std::int64_t next = 0;
    for (const auto& [position, child] : by_position) {
      for (; next < position; ++next) file_.none();
      write(nesting_.at(child));
      ++next;
    }
  }

  PickleWriter& file_;
  const Nesting& nesting_;
  const std::function<void(const Nesting::Leaf&)>& leaf_;
};

}  // namespace

void write_nested(PickleWriter& file, const Nesting& nesting, const Nesting::Place& place,
                  const std::function<void(const Nesting::Leaf&)>& leaf) {
  NestedWriter(file, nesting, leaf).write(place);
}

std::optional<std::vector<PathItem>> PlacedWholes::add(TensorEntry part, std::uint32_t number,
                                                       const std::vector<PathItem>& path) {
  std::vector<std::uint32_t>& parts = parts_[part.part_of->whole.get()];
  parts.push_back(number);
  if (parts.size() > 1) return std::nullopt;
  part.path = path;
  return whole_of(part).path;
}

std::span<const std::uint32_t> PlacedWholes::parts_of(const TensorEntry& part) const {
  return parts_.at(part.part_of->whole.get());
}

}  // namespace ebb::formats::torch_save
