// The shard map: who holds what, as a picture. What is drawn, and how, is in tools/pictures/web.
#include <algorithm>
#include <map>

#include "ebb/formats/core/json_text.h"
#include "tools/ckpt_inspect/gaps.h"
#include "tools/ckpt_inspect/modes.h"
#include "tools/cli/text.h"
#include "tools/pictures/layers.h"
#include "tools/pictures/page.h"
#include "tools/pictures/rows.h"

namespace ebb::tools::inspect {

namespace {

using pictures::kMaxPieces;
using pictures::kNoLayer;
using pictures::Layers;

std::uint64_t elements_in(const Box& box) {
  return formats::checked_volume(box.extent).value_or(0);
}

std::uint64_t bytes_in(const TensorEntry& tensor, const Box& box) {
  return elements_in(box) * formats::bits_of(tensor.dtype) / 8;
}

struct Piece {
  std::uint32_t tensor = 0, file = 0, place = 0;  // rows of their tables
  std::uint64_t bytes = 0;                        // of its elements
  std::uint64_t offset = 0, length = 0;           // in the file
  std::int64_t layer = kNoLayer;
  std::string twice = {};  // what else holds some of it
};

struct Strip {
  std::vector<Piece> pieces;
  std::uint64_t bytes = 0;
};

struct Hole {
  std::uint32_t tensor = 0;
  std::string rows;
  std::uint64_t bytes = 0;
};

// Everything that the page's script is given: see web/map.js.
class Map {
 public:
  explicit Map(const View& view) : view_(view), layers_(view.tensors) {
    for (const TensorEntry* tensor : view.tensors) add(*tensor);
    for (auto& [at, strip] : strips_) pieces_ += strip.pieces.size();
    if (pieces_ > kMaxPieces) merge();
  }

  std::string json() const;
  bool merged() const { return merged_; }
  std::size_t pieces() const { return pieces_; }
  std::size_t holes() const { return holes_.size(); }
  std::size_t twice() const { return also_.size(); }
  Found found() const { return found_; }

 private:
  std::uint32_t row_of(const TensorEntry& tensor, std::int64_t layer) {
    return pictures::tensor_in(tensors_, tensor.name, tensor.state, name_of(tensor.dtype),
                               formats::to_string(tensor.shape), layer);
  }
  std::uint32_t place_of(std::string_view rows, std::uint64_t bytes, std::int64_t layer) {
    return pictures::place_in(places_, rows, bytes, layer);
  }
  std::size_t state_of(const std::string& state) {
    const auto [at, added] = state_numbers_.try_emplace(state, states_.size());
    if (added) states_.push_back(state);
    return at->second;
  }
  std::string holder_text(const Chunk& chunk, const Box& common, const Shape& shape) const {
    return compose("rows {}, also by rank {} in {}", rows_text(common, shape),
                   index_of(chunk.holder), view_.catalog().files.at(chunk.file).name);
  }

  void add(const TensorEntry& tensor);
  void add(const TensorEntry& tensor, const Chunk& chunk, std::uint32_t row, std::int64_t layer);
  void find_gaps(const TensorEntry& tensor, std::uint32_t row);
  void merge();
  Strip merged_of(const Strip& strip, const std::string& state);
  void write_strip(JsonWriter& json, const std::string& state, Rank rank, const Strip& strip) const;

  const View& view_;
  Layers layers_;
  pictures::Rows tensors_, places_, files_;
  std::map<std::string, std::size_t> state_numbers_;
  std::vector<std::string> states_;
  std::map<std::pair<std::size_t, Rank>, Strip> strips_;
  std::map<const Chunk*, std::string> also_;  // what else holds some of it
  std::vector<Hole> holes_;
  std::size_t pieces_ = 0;
  bool merged_ = false;
  Found found_ = Found::all;
};

void Map::add(const TensorEntry& tensor) {
  const std::int64_t layer = layers_.of(tensor);
  const std::uint32_t row = row_of(tensor, layer);
  if (!prove_coverage(tensor, view_.catalog())) find_gaps(tensor, row);
  for (const Chunk& chunk : tensor.chunks)
    if (!view_.selection.rank || chunk.holder == *view_.selection.rank)
      add(tensor, chunk, row, layer);
}

void Map::add(const TensorEntry& tensor, const Chunk& chunk, std::uint32_t row,
              std::int64_t layer) {
  if (elements_in(chunk.box) == 0) return;
  Piece piece{.tensor = row, .bytes = bytes_in(tensor, chunk.box), .layer = layer};
  const std::int64_t own = layer == kNoLayer ? layers_.of(tensor, chunk.box) : kNoLayer;
  if (own != kNoLayer) piece.layer = own;
  piece.place = place_of(rows_text(chunk.box, tensor.shape), piece.bytes, own);
  piece.file = files_.number_of(json_string(view_.catalog().files.at(chunk.file).name));
  piece.offset = chunk.offset;
  piece.length = chunk.length;
  if (const auto also = also_.find(&chunk); also != also_.end()) piece.twice = also->second;
  Strip& strip = strips_[{state_of(tensor.state), chunk.holder}];
  strip.bytes += piece.bytes;
  strip.pieces.push_back(std::move(piece));
}

void Map::find_gaps(const TensorEntry& tensor, std::uint32_t row) {
  const Gaps gaps = gaps_of(tensor);
  if (gaps.found == Found::some) found_ = Found::some;
  state_of(tensor.state);
  for (const Box& hole : gaps.holes)
    holes_.push_back({row, rows_text(hole, tensor.shape), bytes_in(tensor, hole)});
  for (const Gaps::Twice& twice : gaps.twice) {
    const Chunk &one = tensor.chunks[twice.chunk], &other = tensor.chunks[twice.before];
    also_[&one] = holder_text(other, twice.box, tensor.shape);
    also_[&other] = holder_text(one, twice.box, tensor.shape);
  }
}

void Map::merge() {
  merged_ = true;
  pieces_ = 0;
  for (auto& [at, strip] : strips_) {
    strip = merged_of(strip, states_.at(at.first));
    pieces_ += strip.pieces.size();
  }
}

// Neighbours of the same layer and file become one piece, which says how many it is.
Strip Map::merged_of(const Strip& strip, const std::string& state) {
  Strip out{.bytes = strip.bytes};
  for (std::size_t at = 0; at < strip.pieces.size();) {
    Piece piece = strip.pieces[at];
    std::size_t end = at + 1;
    for (; end < strip.pieces.size(); ++end) {
      const Piece& next = strip.pieces[end];
      if (next.layer != piece.layer || next.file != piece.file) break;
      piece.bytes += next.bytes;
      piece.length = std::max(piece.offset + piece.length, next.offset + next.length);
      piece.offset = std::min(piece.offset, next.offset);
      piece.length -= piece.offset;
      if (piece.twice.empty()) piece.twice = next.twice;
    }
    const TensorEntry all{.name = piece.layer == kNoLayer ? "outside the layers" : "a layer",
                          .state = state};
    piece.tensor = row_of(all, piece.layer);
    piece.place = place_of(plural(end - at, "piece"), piece.bytes, kNoLayer);
    out.pieces.push_back(std::move(piece));
    at = end;
  }
  return out;
}

void Map::write_strip(JsonWriter& json, const std::string& state, Rank rank,
                      const Strip& strip) const {
  json.open_object().put("state", state).put("rank", rank).put("bytes", strip.bytes);
  pictures::Differences numbers;
  for (const Piece& piece : strip.pieces)
    numbers.add(piece.tensor, piece.file, piece.offset, piece.length - piece.bytes, piece.place);
  json.key("numbers").raw(numbers.list());
  if (std::ranges::any_of(strip.pieces, [](const Piece& one) { return !one.twice.empty(); })) {
    json.key("twice").open_list();
    for (std::size_t i = 0; i < strip.pieces.size(); ++i)
      if (!strip.pieces[i].twice.empty())
        json.open_list().number(i).text(strip.pieces[i].twice).close_list();
    json.close_list();
  }
  json.close_object();
}

std::string Map::json() const {
  std::uint64_t fullest = 1;
  for (const auto& [at, strip] : strips_) fullest = std::max(fullest, strip.bytes);
  JsonWriter json;
  json.open_object().put("span", fullest).put("padding", view_.catalog().padding_elems);
  layers_.write(json.key("layers"));
  tensors_.write(json.key("tensors"));
  files_.write(json.key("files"));
  places_.write(json.key("places"));
  json.key("strips").open_list();
  for (const auto& [at, strip] : strips_) write_strip(json, states_.at(at.first), at.second, strip);
  json.close_list().key("holes").open_list();
  for (const Hole& hole : holes_)
    json.open_list().number(hole.tensor).text(hole.rows).number(hole.bytes).close_list();
  json.close_list().close_object();
  return json.take();
}

std::string headline(const View& view) {
  std::map<Rank, std::uint64_t> held;
  std::uint64_t elements = 0;
  for (const TensorEntry* tensor : view.tensors) {
    elements += elements_of(*tensor);
    for (const Chunk& chunk : tensor->chunks) held[chunk.holder] += elements_in(chunk.box);
  }
  std::uint64_t fullest = 0, sum = 0;
  for (const auto& [rank, count] : held) {
    fullest = std::max(fullest, count);
    sum += count;
  }
  const double mean =
      held.empty() ? 0 : static_cast<double>(sum) / static_cast<double>(held.size());
  const double above = mean > 0 ? 100.0 * (static_cast<double>(fullest) / mean - 1) : 0;
  const std::uint64_t padding = view.catalog().padding_elems;
  const double whole = static_cast<double>(elements + padding);
  const double padded = whole > 0 ? 100.0 * static_cast<double>(padding) / whole : 0;
  std::string out =
      compose("{}{}{}", plural(held.size(), "rank"), held.size() == 1 ? " holds " : " hold ",
              elements == 1 ? "1 element" : count_text(elements) + " elements");
  if (held.size() > 1)
    out += compose("; the fullest has {} % more than the mean", decimal(above, 2));
  if (padding > 0) out += compose("; padding {} %", decimal(padded, 2));
  return out;
}

pictures::Page page_of(const View& view, const Map& map) {
  const Catalog& catalog = view.catalog();
  pictures::Page page{.subject = view.path, .headline = headline(view), .data = map.json()};
  const Result<> coverage = prove_coverage(catalog);
  page.facts.push_back(compose(
      "{}{} · {}{}", catalog.format, catalog.step ? compose(" · step {}", *catalog.step) : "",
      catalog.partition, coverage ? " · every element is stored exactly once" : ""));
  if (!coverage)
    page.warnings.push_back("not every element is stored exactly once: " +
                            coverage.error().message);
  if (map.found() == Found::some)
    page.warnings.emplace_back("more is missing or stored twice than is drawn");
  if (const std::string unread = unread_line(view); !unread.empty())
    page.warnings.push_back(unread);
  if (map.merged())
    page.facts.push_back(compose("of more than {} pieces, neighbours of one layer are drawn as one",
                                 count_text(kMaxPieces)));
  return page;
}

}  // namespace

Result<Exit> write_map(Console& console, const View& view, const std::string& file) {
  EBB_TRY_ASSIGN(const ResultFile map_file,
                 pictures::picture_file("--map", file, pictures::Kind::shard_map));
  const Map map(view);
  EBB_TRY_ASSIGN(const std::uint64_t bytes,
                 pictures::write_page(map_file, pictures::Kind::shard_map, page_of(view, map)));
  if (view.output == Output::json) {
    JsonWriter json;
    open_document(json, "map");
    json.put("file", file).put("bytes", bytes);
    json.put("pieces", map.pieces()).put("holes", map.holes()).put("stored_twice", map.twice());
    write_unread(json, view);
    json.close_object();
    console.print(json.take());
  } else {
    console.print(
        compose("shard map: {}, {}\n{}", printable(file), bytes_text(bytes), unread_text(view)));
  }
  return Exit::success;
}

}  // namespace ebb::tools::inspect
