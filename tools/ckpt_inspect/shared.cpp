#include <algorithm>

#include "formats/core/json_text.h"
#include "tools/ckpt_inspect/modes.h"
#include "tools/cli/text.h"

namespace tools::inspect {

using formats::Box;
using formats::Chunk;
using formats::Rank;
using formats::Shape;
using formats::TensorEntry;
using formats::Value;

void open_document(JsonWriter& json, std::string_view mode) {
  json.open_object().key("schema").text("ckpt.inspect/1").key("mode").text(mode);
}

void write_shape(JsonWriter& json, const Shape& shape) {
  json.open_list();
  for (const std::uint64_t extent : shape) json.number(extent);
  json.close_list();
}

std::string value_text(const Value& value) {
  if (value.kind == Value::Kind::string) return formats::printable(value.text, 40);
  if (value.kind != Value::Kind::tuple && value.kind != Value::Kind::list)
    return formats::printable(formats::to_json(value), 60);
  constexpr std::size_t kItems = 6;
  const bool tuple = value.kind == Value::Kind::tuple;
  std::string out = tuple ? "(" : "[";
  for (std::size_t i = 0; i < std::min(value.items.size(), kItems); ++i) {
    if (i != 0) out += ", ";
    out += formats::printable(formats::to_json(value.items[i]), 40);
  }
  if (value.items.size() > kItems) out += ", ...";
  return out + (tuple ? ")" : "]");
}

std::string rows_text(const Box& box, const Shape& shape) {
  if (box == formats::whole(shape)) return "all";
  for (std::size_t d = 1; d < shape.size(); ++d)
    if (box.extent[d] != shape[d]) return formats::to_string(box);
  if (box.extent[0] == 0) return "-";
  const std::uint64_t last = box.offset[0] + box.extent[0] - 1;
  std::string text = std::to_string(box.offset[0]);
  if (last != box.offset[0]) text += "-" + std::to_string(last);
  return text;
}

std::string held_text(const TensorEntry& tensor, Rank rank) {
  const Chunk* only = nullptr;
  std::size_t boxes = 0;
  for (const Chunk& chunk : tensor.chunks) {
    const auto elements = formats::checked_volume(chunk.box.extent);
    if (chunk.holder != rank || (elements && *elements == 0)) continue;
    only = &chunk;
    ++boxes;
  }
  if (boxes == 0) return "-";
  return boxes == 1 ? rows_text(only->box, tensor.shape) : std::to_string(boxes) + " boxes";
}

std::size_t shown_of(const View& view, std::size_t total, std::size_t otherwise) {
  const std::uint64_t limit = view.limit.value_or(otherwise);
  return static_cast<std::size_t>(std::min<std::uint64_t>(total, limit));
}

}  // namespace tools::inspect
