#include <algorithm>

#include "ebb/formats/core/json_text.h"
#include "tools/ckpt_inspect/modes.h"
#include "tools/cli/text.h"

namespace ebb::tools::inspect {

void open_document(JsonWriter& json, std::string_view mode) {
  json.open_object().key("schema").text("ckpt.inspect/1").key("mode").text(mode);
}

void write_shape(JsonWriter& json, const Shape& shape) {
  json.open_list();
  for (const std::uint64_t extent : shape) json.number(extent);
  json.close_list();
}

std::string labelled(std::string_view label, std::string_view text) {
  std::string out = compose("  {}", label);
  out.resize(12, ' ');
  return compose("{}{}\n", out, text);
}

std::string value_text(const Value& value) {
  if (value.kind == Value::Kind::string) return printable(value.text, 40);
  if (value.kind != Value::Kind::tuple && value.kind != Value::Kind::list)
    return printable(formats::to_json(value), 60);
  constexpr std::size_t kItems = 6;
  const bool tuple = value.kind == Value::Kind::tuple;
  std::string out = tuple ? "(" : "[";
  for (std::size_t i = 0; i < std::min(value.items.size(), kItems); ++i) {
    if (i != 0) out += ", ";
    out += printable(formats::to_json(value.items[i]), 40);
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
  if (last != box.offset[0]) text += compose("-{}", last);
  return text;
}

std::string held_text(const TensorEntry& tensor, Rank rank) {
  std::vector<const Chunk*> held;
  for (const Chunk& chunk : tensor.chunks) {
    const auto elements = formats::checked_volume(chunk.box.extent);
    if (chunk.holder == rank && (!elements || *elements != 0)) held.push_back(&chunk);
  }
  if (held.empty()) return "-";
  if (held.size() == 1) return rows_text(held.front()->box, tensor.shape);
  // What a flat partition cuts is several boxes, but one run of elements.
  std::vector<std::pair<std::uint64_t, std::uint64_t>> runs;
  for (const Chunk* chunk : held) {
    if (!formats::inside(chunk->box, tensor.shape)) break;
    const auto range = formats::flat_range_of(tensor.shape, chunk->box);
    if (!range) break;
    runs.emplace_back(range->first, range->first + range->count);
  }
  std::sort(runs.begin(), runs.end());
  bool one_run = runs.size() == held.size();
  for (std::size_t i = 1; i < runs.size(); ++i)
    one_run = one_run && runs[i].first == runs[i - 1].second;
  if (!one_run) return compose("{} boxes", held.size());
  return compose("el {}-{}", runs.front().first, runs.back().second - 1);
}

std::size_t shown_of(const View& view, std::size_t total, std::size_t otherwise) {
  const std::uint64_t limit = view.limit.value_or(otherwise);
  return static_cast<std::size_t>(std::min<std::uint64_t>(total, limit));
}

}  // namespace ebb::tools::inspect
