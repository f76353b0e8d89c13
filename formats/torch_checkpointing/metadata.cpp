#include "ebb/formats/torch_checkpointing/metadata.h"

#include <algorithm>

#include "ebb/formats/core/compose.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/units.h"
#include "ebb/formats/pickle/pickle.h"
#include "ebb/formats/torch/mesh_of.h"
#include "ebb/formats/torch/tensor.h"

namespace ebb::formats::torch_checkpointing {
namespace {

constexpr std::uint64_t kMostBytes = 4 * GiB;
constexpr std::uint64_t kPartBytes = 256;  // about what one takes beside its path
constexpr std::uint64_t kPlaceBytes = 64;  // of a rank in a mesh

class Reader {
 public:
  explicit Reader(const PickleGraph& graph) : graph_(graph) {}

  Result<Metadata> run() {
    const PickleId root = graph_.root();
    const PickleId items = graph_.find(root, "metadata");
    const auto world = number(graph_.find(root, "world_size"));
    if (!is(items, PickleKind::dict) || !world || *world == 0 || *world > kMostRanks)
      return bad("no dict with metadata and a world_size of 1 to 131072");
    read_.world = static_cast<std::uint32_t>(*world);
    const PickleId version = graph_.find(root, "version");
    const std::string_view said = version == kNoPickle              ? "1.0"
                                  : is(version, PickleKind::string) ? graph_.text(version)
                                                                    : "";
    if (said == "2.0")
      EBB_TRY(read_items(items));
    else if (said == "1.0")
      EBB_TRY(read_flat(items, graph_.find(root, "rank_to_layout_info_mappings")));
    else
      return Error{
          Code::unsupported,
          compose("{}: metadata of torch_checkpointing of version {}; 1.0 and 2.0 are read",
                  graph_.where(), json_string(said))};
    return std::move(read_);
  }

 private:
  bool is(PickleId id, PickleKind kind) const { return id != kNoPickle && graph_.is(id, kind); }
  Error bad(std::string_view why) const {
    return {Code::corrupt, compose("{}: {}", graph_.where(), why)};
  }
  Error bad(std::string_view key, std::string_view why) const {
    return bad(compose("{}: {}", json_string(key), why));
  }
  std::optional<std::uint64_t> number(PickleId id) const {
    if (!is(id, PickleKind::integer) || graph_.integer(id) < 0) return std::nullopt;
    return static_cast<std::uint64_t>(graph_.integer(id));
  }
  std::span<const PickleId> sequence(PickleId id) const {
    return is(id, PickleKind::list) || is(id, PickleKind::tuple) ? graph_.items(id)
                                                                 : std::span<const PickleId>{};
  }
  std::optional<Shape> shape(PickleId id) const {
    return id == kNoPickle ? std::nullopt : torch_shape(graph_, id);
  }
  std::string_view text(PickleId id) const {
    return is(id, PickleKind::string) ? graph_.text(id) : std::string_view{};
  }

  // Version 2: {item: {"nested_path_to_metadata": ..., "rank_to_layout_info": ...}}.
  Result<> read_items(PickleId items) {
    const std::span<const PickleId> entries = graph_.items(items);
    for (std::size_t i = 0; i + 1 < entries.size(); i += 2) {
      const std::string name(text(entries[i]));
      const PickleId tensors = graph_.find(entries[i + 1], "nested_path_to_metadata");
      const PickleId files = graph_.find(entries[i + 1], "rank_to_layout_info");
      if (name.empty() || !is(tensors, PickleKind::dict) || !is(files, PickleKind::dict))
        return bad(name, "an item without its tensors or its files");
      ItemMetadata& item = read_.items[name];
      EBB_TRY(read_tensors(graph_.items(tensors), [&](std::string_view path) {
        return &item.tensors[std::string(path)];
      }));
      const std::span<const PickleId> layouts = graph_.items(files);
      if (layouts.size() != 2 * std::uint64_t{read_.world})
        return bad(
            name, compose("files of {} ranks, where {} wrote it", layouts.size() / 2, read_.world));
      EBB_TRY(graph_.charge(read_.world * kPlaceBytes));
      for (std::size_t at = 0; at + 1 < layouts.size(); at += 2)
        EBB_TRY(read_file(name, item, layouts[at], layouts[at + 1]));
    }
    return {};
  }

  // Version 1: {'["item","path",...]': ...}, and the files by rank, then by item.
  Result<> read_flat(PickleId tensors, PickleId files) {
    EBB_TRY(read_tensors(graph_.items(tensors), [&](std::string_view path) {
      const std::size_t end = path.find('"', 2);
      if (!path.starts_with("[\"") || end == std::string_view::npos)
        return static_cast<std::vector<SaidParts>*>(nullptr);
      std::string_view below = path.substr(end + 1);
      if (below.starts_with(',')) below.remove_prefix(1);
      return &read_.items[std::string(path.substr(2, end - 2))]
                  .tensors[std::string("[").append(below)];
    }));
    if (!is(files, PickleKind::dict)) return bad("no dict rank_to_layout_info_mappings");
    const std::span<const PickleId> ranks = graph_.items(files);
    EBB_TRY(graph_.charge(read_.items.size() * read_.world * kPlaceBytes));
    for (std::size_t i = 0; i + 1 < ranks.size(); i += 2) {
      if (!is(ranks[i + 1], PickleKind::dict)) return bad("the files of a rank are no dict");
      const std::span<const PickleId> layouts = graph_.items(ranks[i + 1]);
      for (std::size_t at = 0; at + 1 < layouts.size(); at += 2)
        if (const auto item = read_.items.find(std::string(text(layouts[at])));
            item != read_.items.end())
          EBB_TRY(read_file(item->first, item->second, ranks[i], layouts[at + 1]));
    }
    return {};
  }

  // None: the usual name, and torch.save.
  Result<> read_file(const std::string& item, ItemMetadata& into, PickleId at, PickleId layout) {
    const auto rank = number(at);
    if (!rank || *rank >= read_.world)
      return bad(item, compose("a file of a rank that is none of the {}", read_.world));
    if (is(layout, PickleKind::none)) return {};
    const std::string_view name = text(graph_.find(layout, "file_path"));
    const std::string_view how =
        text(graph_.find(graph_.find(layout, "serialization_format"), "type"));
    if (name.empty()) return bad(item, "a file without a file_path");
    if (how != "TorchSerialization")
      return Error{Code::unsupported,
                   compose("{}: item {} lies in {}, written with {}: of torch_checkpointing, files "
                           "of TorchSerialization are read",
                           graph_.where(), json_string(item), json_string(name),
                           how.empty() ? "something unknown" : printable(how)),
                   "save the item without a layout of its own"};
    into.files.emplace(static_cast<std::uint32_t>(*rank), name);
    return graph_.charge(kPartBytes + name.size());
  }

  Result<> read_tensors(std::span<const PickleId> entries, auto place_of) {
    for (std::size_t i = 0; i + 1 < entries.size(); i += 2) {
      const std::string_view path = text(entries[i]);
      EBB_TRY(graph_.charge(kPartBytes + path.size()));
      std::vector<SaidParts>* const parts = path.starts_with('[') ? place_of(path) : nullptr;
      if (parts == nullptr) return bad(path, "is no path of a tensor");
      for (const PickleId group : sequence(entries[i + 1])) {
        EBB_TRY(graph_.charge(kPartBytes));
        auto read = read_parts(group);
        if (!read) return std::move(read).error().about(json_string(path));
        if (*read) parts->push_back(std::move(**read));
      }
    }
    return {};
  }

  // nullopt: in a form of somebody's own.
  Result<std::optional<SaidParts>> read_parts(PickleId group) {
    const PickleId packed = graph_.find(group, "sharding_metadata");
    const std::string_view type = text(graph_.find(packed, "type"));
    const PickleId data = graph_.find(packed, "data");
    const bool dtensor = type == "DTensorShardingMetadata";
    if (!dtensor && type != "default_tensor_v1") return std::optional<SaidParts>();
    SaidParts parts;
    const auto whole = shape(graph_.find(data, "global_shape"));
    if (!whole) return bad("no global_shape");
    parts.shape = *whole;
    parts.dtype = torch_dtype_named(text(graph_.find(data, "dtype")));
    if (dtensor)
      EBB_TRY(read_placements(data, parts));
    else
      EBB_TRY(read_boxes(data, graph_.find(group, "ranks"), parts));
    return std::optional(std::move(parts));
  }

  Result<> read_placements(PickleId data, SaidParts& parts) {
    EBB_TRY_ASSIGN(parts.mesh, mesh_at(graph_.find(data, "mesh_spec")));
    for (const PickleId id : sequence(graph_.find(data, "placements"))) {
      const std::string_view type = text(graph_.find(id, "type"));
      Placement placement;
      if (type != "Replicate") {
        const auto dim = number(graph_.find(id, "dim"));
        const bool strided = type == "StridedShard";
        const auto split = strided ? number(graph_.find(id, "split_factor")) : std::uint64_t{1};
        if ((type != "Shard" && !strided) || !dim || *dim >= parts.shape.size() || !split ||
            *split == 0)
          return bad("a placement that is not known");
        placement = {strided ? Placement::Kind::strided : Placement::Kind::shard,
                     static_cast<std::uint32_t>(*dim), *split};
      }
      parts.placements.push_back(placement);
    }
    if (parts.placements.size() == parts.mesh->shape.size()) return {};
    return bad(compose("{} placements on a mesh of shape {}", parts.placements.size(),
                       to_string(parts.mesh->shape)));
  }

  // Tensors share their meshes.
  Result<std::shared_ptr<const SaidMesh>> mesh_at(PickleId id) {
    std::shared_ptr<const SaidMesh>& known = meshes_[id];
    if (known != nullptr) return known;
    const auto axes = shape(graph_.find(id, "mesh_shape"));
    const std::span<const PickleId> ranks = sequence(graph_.find(id, "mesh_data"));
    if (!axes || checked_volume(*axes) != ranks.size()) return bad("a mesh without its ranks");
    EBB_TRY(graph_.charge(ranks.size() * kPlaceBytes));
    SaidMesh mesh{*axes, {}};
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      const auto rank = number(ranks[i]);
      if (!rank || *rank >= read_.world ||
          !mesh.places.emplace(static_cast<std::uint32_t>(*rank), i).second)
        return bad(
            compose("a mesh with a rank that is none of the {}, or comes twice", read_.world));
    }
    return known = std::make_shared<const SaidMesh>(std::move(mesh));
  }

  Result<> read_boxes(PickleId data, PickleId ranks, SaidParts& parts) {
    const auto offsets = sequence(graph_.find(data, "global_offsets"));
    const auto places = sequence(graph_.find(data, "local_offsets"));
    const auto sizes = sequence(graph_.find(data, "local_sizes"));
    if (offsets.size() != sizes.size() || places.size() != sizes.size())
      return bad("offsets and sizes of different numbers of boxes");
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      EBB_TRY(graph_.charge(kPartBytes));
      auto offset = shape(offsets[i]), place = shape(places[i]), size = shape(sizes[i]);
      PlacedBox box;
      if (!offset || !place || !size) return bad("a box that is none");
      box.box = {std::move(*offset), std::move(*size)};
      box.at = std::move(*place);
      if (box.at.size() != parts.shape.size() || box.box.extent.size() != parts.shape.size() ||
          !inside(box.box, parts.shape))
        return bad(
            compose("box {} of a tensor of shape {}", to_string(box.box), to_string(parts.shape)));
      if (volume(box.box.extent) > 0) parts.boxes.push_back(std::move(box));
    }
    for (const PickleId id : sequence(ranks)) {
      const auto rank = number(id);
      if (!rank || *rank >= read_.world) return bad("a part of a rank that is none");
      parts.ranks.push_back(static_cast<std::uint32_t>(*rank));
    }
    return graph_.charge(parts.ranks.size() * sizeof(std::uint32_t));
  }

  const PickleGraph& graph_;
  Metadata read_;
  std::map<PickleId, std::shared_ptr<const SaidMesh>> meshes_;
};

void append_escaped(std::string& out, std::uint32_t unit) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  out += "\\u";
  for (int shift = 12; shift >= 0; shift -= 4) out += kDigits[(unit >> shift) & 15];
}

// A code point of UTF-8 that is not ASCII, as Python escapes it.
void append_code_point(std::string& out, std::string_view utf8) {
  std::uint32_t point = static_cast<unsigned char>(utf8[0]) & (0xffu >> (utf8.size() + 1));
  for (const char c : utf8.substr(1)) point = point << 6 | (static_cast<unsigned char>(c) & 0x3fu);
  if (point < 0x10000) return append_escaped(out, point);
  append_escaped(out, 0xd800 + ((point - 0x10000) >> 10));
  append_escaped(out, 0xdc00 + ((point - 0x10000) & 0x3ff));
}

// ASCII alone, as Python's json makes it.
std::string python_json(std::string_view text) {
  constexpr std::string_view kPlain = "\b\f\n\r\t\"\\";
  constexpr std::string_view kNamed = "bfnrt\"\\";
  std::string out = "\"";
  while (!text.empty()) {
    const std::size_t length = std::max<std::size_t>(utf8_length(text), 1);
    const std::string_view one = text.substr(0, length);
    if (const std::size_t named = kPlain.find(one); named != std::string_view::npos)
      (out += '\\') += kNamed[named];
    else if (length > 1)
      append_code_point(out, one);
    else if (one[0] < ' ' || one[0] > '~')
      append_escaped(out, static_cast<unsigned char>(one[0]));
    else
      out += one;
    text.remove_prefix(length);
  }
  return out + '"';
}

}  // namespace

bool SaidParts::holds(std::uint32_t rank) const {
  return mesh != nullptr ? mesh->places.contains(rank)
                         : std::ranges::find(ranks, rank) != ranks.end();
}

bool SaidParts::is_cut() const {
  if (mesh == nullptr) return true;
  return std::ranges::any_of(placements, [](const Placement& placement) {
    return placement.kind != Placement::Kind::replicate;
  });
}

Result<PlacedPart> SaidParts::part_of(std::uint32_t rank) const {
  if (mesh == nullptr) return PlacedPart{shape, boxes};
  std::uint64_t place = mesh->places.at(rank);
  std::vector<PlacedAxis> axes(placements.size());
  for (std::size_t axis = axes.size(); axis-- > 0;) {
    axes[axis] = {mesh->shape[axis], place % mesh->shape[axis], placements[axis]};
    place /= mesh->shape[axis];
  }
  return placed_part(shape, axes);
}

std::string path_text(std::span<const PathItem> path) {
  std::string text = "[";
  for (const PathItem& item : path) {
    if (text.size() > 1) text += ',';
    const auto* word = std::get_if<std::string>(&item);
    text += word != nullptr ? python_json(*word) : std::to_string(std::get<std::int64_t>(item));
  }
  return text + "]";
}

Result<Metadata> read_metadata(const ByteSource& source) {
  EBB_TRY_ASSIGN(ByteVector bytes, read_bytes(source, 0, source.size(), kMostBytes));
  EBB_TRY_ASSIGN(const PickleGraph graph,
                 PickleGraph::parse(std::move(bytes), std::string(source.name())));
  return Reader(graph).run();
}

}  // namespace ebb::formats::torch_checkpointing
