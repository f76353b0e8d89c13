#include "ebb/formats/torch/composite_join.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "ebb/formats/catalog/value_json.h"
#include "ebb/formats/core/compose.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/units.h"

namespace ebb::formats {
namespace {

// Parts of torchao's classes that are no boxes of the whole: of its elements in one row, so many a
// block, or a table that all blocks have in common. Source: torchao/optim/subclass_*.py.
struct Row {
  std::string_view type, part;
  bool common;
};
constexpr std::array kRows{
    Row{"OptimState8bit", "scale", false}, Row{"OptimState8bit", "qmap", true},
    Row{"OptimState4bit", "codes", false}, Row{"OptimState4bit", "scale", false},
    Row{"OptimState4bit", "qmap", true},   Row{"OptimStateFp8", "scale", false},
};

const Row* row_of(std::string_view type, std::string_view part) {
  const std::string_view word = type.substr(type.rfind('.') + 1);
  const auto* found = std::ranges::find_if(
      kRows, [&](const Row& row) { return row.type == word && row.part == part; });
  return found == kRows.end() ? nullptr : found;
}

// A part and what of it lies in a piece.
struct Place {
  Shape shape;
  Box box;
};

std::optional<std::uint64_t> scaled(std::uint64_t value, std::uint64_t to, std::uint64_t from) {
  const auto product = checked_mul(value, to);
  if (!product || from == 0 || *product % from != 0) return std::nullopt;
  return *product / from;
}

// A part of as many dimensions is cut as the whole is: so many elements for one, or one for many.
std::optional<Place> as_the_whole(const Shape& part, const Box& box, const Shape& shape) {
  Place place{{}, {{}, part}};
  for (std::size_t i = 0; i < part.size(); ++i) {
    const auto offset = scaled(box.offset[i], part[i], box.extent[i]);
    const auto extent = scaled(shape[i], part[i], box.extent[i]);
    if (!offset || !extent) return std::nullopt;
    place.box.offset.push_back(*offset);
    place.shape.push_back(*extent);
  }
  return place;
}

// Rows of the whole, all columns of them, are a range of its elements.
std::optional<Place> in_one_row(const Shape& part, const Box& box, const Shape& shape) {
  const bool rows = part.size() == 1 && !shape.empty() &&
                    std::equal(shape.begin() + 1, shape.end(), box.extent.begin() + 1);
  const std::uint64_t elems = volume(box.extent);
  if (!rows || box.extent[0] == 0) return std::nullopt;
  const auto offset = scaled(box.offset[0] * (elems / box.extent[0]), part[0], elems);
  const auto extent = scaled(volume(shape), part[0], elems);
  if (!offset || !extent) return std::nullopt;
  return Place{{*extent}, {{*offset}, part}};
}

bool is_shape(const Value& value, const Shape& shape) {
  const bool list = value.kind == Value::Kind::size || value.kind == Value::Kind::tuple ||
                    value.kind == Value::Kind::list;
  return list &&
         std::ranges::equal(value.items, shape, [](const Value& item, std::uint64_t extent) {
           return item.kind == Value::Kind::integer && std::cmp_equal(item.integer, extent);
         });
}

// What the whole would keep: its own shape where the piece has the piece's.
Composite as_whole(const Composite& piece, const Box& box, const Shape& shape) {
  Composite whole = piece;
  whole.shape = shape;
  for (auto& [name, value] : whole.settings) {
    if (!name.ends_with("shape") || !is_shape(value, box.extent)) continue;
    for (std::size_t i = 0; i < shape.size(); ++i)
      value.items[i] = Value::of_int(static_cast<std::int64_t>(shape[i]));
  }
  return whole;
}

bool alike(const Composite& a, const Composite& b) {
  return a.type == b.type && a.dtype == b.dtype &&
         std::ranges::equal(a.settings, b.settings, [](const auto& one, const auto& other) {
           return one.first == other.first && to_json(one.second) == to_json(other.second);
         });
}

}  // namespace

std::string CompositeJoin::add(CompositePiece piece) {
  const bool all = piece.box == whole(shape_);
  if (piece.made.whole.shape != piece.box.extent)
    return compose("a piece of shape {} where {} is said to lie", to_string(piece.made.whole.shape),
                   to_string(piece.box));
  std::vector<std::uint32_t> crcs;
  for (const auto& stored : piece.stored) crcs.push_back(stored.crc);
  const auto seen = std::ranges::find(pieces_, piece.box, &Seen::box);
  if (seen != pieces_.end())
    return seen->crcs == crcs ? "" : "two pieces of the same rows, which are not the same";
  if (pieces_.empty()) {
    begin(piece);
  } else if (all || !alike(whole_, as_whole(piece.made.whole, piece.box, shape_)) ||
             piece.made.parts.size() != parts_.size()) {
    return "pieces that were not made alike";
  }
  for (std::size_t i = 0; i < parts_.size(); ++i)
    if (const std::string why = add_part(i, piece); !why.empty()) return why;
  pieces_.push_back({std::move(piece.box), std::move(crcs)});
  return {};
}

void CompositeJoin::begin(const CompositePiece& piece) {
  whole_ = as_whole(piece.made.whole, piece.box, shape_);
  for (const TorchComposite::Part& part : piece.made.parts) {
    Part& fresh = parts_.emplace_back();
    fresh.name = part.name;
    fresh.entry.dtype = part.tensor.dtype;
    const Row* row = row_of(whole_.type, part.name);
    fresh.common = row != nullptr && row->common;
  }
}

// All of a part lies in the piece that has all of the whole.
std::string CompositeJoin::add_part(std::size_t number, const CompositePiece& piece) {
  const auto& [name, tensor] = piece.made.parts[number];
  const auto& [chunk, crc] = piece.stored[number];
  Part& part = parts_[number];
  const bool first = pieces_.empty();
  if (name != part.name || tensor.dtype != part.entry.dtype)
    return "pieces that were not made alike";
  std::optional<Place> place = Place{tensor.shape, whole(tensor.shape)};
  if (part.common || piece.box == whole(shape_)) {
    if (!first) {
      const bool same = part.entry.shape == tensor.shape && part.crc == crc;
      return same ? std::string() : compose("pieces of which each has its own {}", printable(name));
    }
  } else if (row_of(whole_.type, name) != nullptr) {
    place = in_one_row(tensor.shape, piece.box, shape_);
  } else if (whole_.type.starts_with("torchao.") && tensor.shape.size() == shape_.size()) {
    place = as_the_whole(tensor.shape, piece.box, shape_);
  } else {
    return compose("pieces of the class {}, of which it is not known how its {} is cut",
                   printable(whole_.type), printable(name));
  }
  const auto elems = place ? checked_volume(place->shape) : std::nullopt;
  if (!elems || !checked_mul(*elems, bytes_of(tensor.dtype)) ||
      (!first && place->shape != part.entry.shape))
    return compose("pieces whose {} does not follow the rows", printable(name));
  if (first) part.entry.shape = place->shape, part.crc = crc;
  if (tensor.elems() == 0) return {};
  part.entry.chunks.push_back(chunk);
  part.entry.chunks.back().box = std::move(place->box);
  return {};
}

std::vector<TensorEntry> CompositeJoin::take() {
  whole_.parts = parts_.size();
  const auto all = std::make_shared<const Composite>(std::move(whole_));
  std::vector<TensorEntry> entries;
  for (Part& part : parts_) {
    part.entry.part_of = std::make_shared<const PartOf>(PartOf{all, std::move(part.name)});
    entries.push_back(std::move(part.entry));
  }
  return entries;
}

}  // namespace ebb::formats
