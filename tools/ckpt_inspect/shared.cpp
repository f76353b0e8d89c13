#include <algorithm>

#include "ebb/formats/core/json_text.h"
#include "tools/ckpt_inspect/modes.h"
#include "tools/cli/text.h"

namespace ebb::tools::inspect {

void open_document(JsonWriter& json, std::string_view mode) {
  json.open_object().put("schema", "ckpt.inspect/1").put("mode", mode);
}

void write_identity(JsonWriter& json, const TensorEntry& tensor) {
  json.open_object().put("key", tensor.key).put("name", tensor.name).put("state", tensor.state);
  json.put("dtype", name_of(tensor.dtype)).put("shape", tensor.shape);
}

std::vector<std::string> identity_cells(const TensorEntry& tensor) {
  return {tensor.name, tensor.state, std::string(name_of(tensor.dtype)),
          formats::to_string(tensor.shape)};
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
  std::vector<std::string> items;
  for (std::size_t i = 0; i < std::min(value.items.size(), kItems); ++i)
    items.push_back(printable(formats::to_json(value.items[i]), 40));
  if (value.items.size() > kItems) items.push_back("...");
  const bool tuple = value.kind == Value::Kind::tuple;
  return (tuple ? "(" : "[") + joined(items) + (tuple ? ")" : "]");
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
  std::ranges::sort(runs);
  const auto apart = [](const auto& a, const auto& b) { return a.second != b.first; };
  if (runs.size() != held.size() || std::ranges::adjacent_find(runs, apart) != runs.end())
    return compose("{} boxes", held.size());
  return compose("el {}-{}", runs.front().first, runs.back().second - 1);
}

std::string left_out(std::size_t shown, std::size_t total) {
  return shown < total ? compose("  ... {} more\n", count_text(total - shown)) : "";
}

std::size_t shown_of(const View& view, std::size_t total, std::size_t otherwise) {
  const std::uint64_t limit = view.limit.value_or(otherwise);
  return static_cast<std::size_t>(std::min<std::uint64_t>(total, limit));
}

}  // namespace ebb::tools::inspect
