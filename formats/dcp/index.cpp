#include "ebb/formats/dcp/index.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <unordered_map>

#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/name_table.h"
#include "ebb/formats/dcp/dcp.h"
#include "ebb/formats/torch/tensor.h"

namespace ebb::formats::dcp {
namespace {

constexpr std::size_t kMaxAttributes = 64;  // of one object; the largest has seven
constexpr std::size_t kMaxPath = 256;       // parts of a key
constexpr std::string_view kEbbAs = "Ebb, as ";
constexpr std::string_view kCheckpointModule = "torch.distributed.checkpoint.metadata.";
constexpr std::string_view kOldShardModule = "torch.distributed._shard.sharded_tensor.metadata.";

class Reader {
 public:
  explicit Reader(const PickleGraph& graph) : graph_(graph) {}

  Result<Index> read() {
    const PickleId root = graph_.root();
    const bool metadata =
        graph_.is(root, PickleKind::object) &&
        (graph_.class_name(root) == "torch.distributed.checkpoint.metadata.Metadata" ||
         graph_.class_name(root).ends_with(".MCoreMetadata"));
    if (!metadata) return bad("", "the pickle is no DCP Metadata object");
    EBB_TRY_ASSIGN(const PickleId state, attributes(root, ""));
    const PickleId described = graph_.find(state, "state_dict_metadata");
    const PickleId stored = graph_.find(state, "storage_data");
    if (!has(described, PickleKind::dict))
      return bad("", "the Metadata object has no dict state_dict_metadata");
    if (!has(stored, PickleKind::dict))
      return bad("", "the Metadata object has no dict storage_data");
    EBB_TRY(read_described(described));
    EBB_TRY(read_stored(stored));
    share_items();
    EBB_TRY(read_paths(graph_.find(state, "planner_data")));
    EBB_TRY(read_flat_boxes(graph_.find(state, "mcore_data")));
    // One plan a rank, also of ranks that wrote nothing.
    if (const PickleId plans = graph_.find(state, "all_local_plans"); has(plans, PickleKind::list))
      index_.ranks = static_cast<std::uint32_t>(graph_.items(plans).size());
    note_unknown(state);
    name_producer(state);
    return std::move(index_);
  }

 private:
  struct Place {  // of a key
    enum class Kind : std::uint8_t { tensor, value };
    PickleId key = kNoPickle;
    Kind kind = Kind::tensor;
    std::size_t index = 0;  // in Index::tensors or values
  };

  Error bad(std::string_view key, std::string_view why) const {
    std::string message = graph_.where();
    if (!key.empty()) (message += ": ") += json_string(key);
    (message += ": ") += why;
    return Error{Code::corrupt, std::move(message)};
  }

  // Whether something is there, and of this kind.
  bool has(PickleId id, PickleKind kind) const { return id != kNoPickle && graph_.is(id, kind); }

  // The dict that BUILD gave to an object.
  Result<PickleId> attributes(PickleId object, std::string_view key) const {
    if (!graph_.is(object, PickleKind::object)) return bad(key, "an object is expected here");
    const PickleId state = graph_.state(object);
    if (!has(state, PickleKind::dict))
      return bad(key,
                 compose("an object of class {} has no attributes", graph_.class_name(object)));
    if (graph_.items(state).size() > 2 * kMaxAttributes)
      return bad(key, compose("an object of class {} has more than 64 attributes",
                              graph_.class_name(object)));
    return state;
  }

  Result<> read_described(PickleId dict) {
    const std::span<const PickleId> entries = graph_.items(dict);
    numbers_.reserve(entries.size() / 2);
    places_.reserve(entries.size() / 2);
    index_.tensors.reserve(entries.size() / 2);
    for (std::size_t i = 0; i + 1 < entries.size(); i += 2) {
      if (!graph_.is(entries[i], PickleKind::string))
        return bad("", "a key of state_dict_metadata is no string");
      const std::string_view key = graph_.text(entries[i]);
      if (!numbers_.insert(key).fresh) return bad(key, "the key is listed twice");
      Place& place = places_.emplace_back(Place{.key = entries[i]});
      const PickleId what = entries[i + 1];
      if (!graph_.is(what, PickleKind::object)) return bad(key, "neither tensor nor bytes");
      const std::string_view kind = graph_.class_name(what);
      if (kind == "torch.distributed.checkpoint.metadata.BytesStorageMetadata") {
        place.kind = Place::Kind::value;
        place.index = index_.values.size();
        index_.values.push_back({std::string(key), {}, std::nullopt});
      } else if (kind == "torch.distributed.checkpoint.metadata.TensorStorageMetadata") {
        place.index = index_.tensors.size();
        EBB_TRY_ASSIGN(StoredTensor tensor, read_tensor(key, what));
        index_.tensors.push_back(std::move(tensor));
      } else {
        return bad(key, compose("is a {}, neither tensor nor bytes", kind));
      }
    }
    chunk_orders_.resize(index_.tensors.size());
    return {};
  }

  Result<StoredTensor> read_tensor(std::string_view key, PickleId object) {
    EBB_TRY_ASSIGN(const PickleId state, attributes(object, key));
    const PickleId properties = graph_.find(state, names_.properties);
    const PickleId size = graph_.find(state, names_.size);
    const PickleId chunks = graph_.find(state, names_.chunks);
    if (properties == kNoPickle || size == kNoPickle || chunks == kNoPickle)
      return bad(key, "properties, size or chunks are missing");
    EBB_TRY_ASSIGN(const DType dtype, read_properties(key, properties));
    Shape shape;
    if (!read_shape(size, shape)) return bad(key, "its size is not made of counts");
    const auto elems = checked_volume(shape);
    if (!elems || !checked_mul(*elems, bytes_of(dtype)))
      return bad(key, "its size " + to_string(shape) + " does not fit 64 bits");
    StoredTensor tensor{std::string(key), {}, dtype, shape, {}};
    if (!graph_.is(chunks, PickleKind::list)) return bad(key, "its chunks are no list");
    tensor.chunks.reserve(graph_.items(chunks).size());
    for (const PickleId chunk : graph_.items(chunks)) {
      EBB_TRY(graph_.charge(sizeof(StoredChunk) + 16 * shape.size()));
      EBB_TRY_ASSIGN(Box box, read_chunk(key, chunk, shape));
      // Ranks without rows write a chunk of nothing; it holds nothing to read.
      if (volume(box.extent) != 0) tensor.chunks.push_back({std::move(box), std::nullopt});
    }
    return tensor;
  }

  // Most shapes were just read: one that is said again is one node of the graph.
  bool read_shape(PickleId id, Shape& into) {
    auto& [known, shape] = shapes_[id % shapes_.size()];
    if (known != id) {
      known = kNoPickle;
      if (!read_torch_shape(graph_, id, shape)) return false;
      known = id;
    }
    into = shape;
    return true;
  }

  Result<DType> read_properties(std::string_view key, PickleId object) {
    if (!graph_.is(object, PickleKind::object) || !has(graph_.state(object), PickleKind::tuple) ||
        graph_.items(graph_.state(object)).size() < 5)
      return bad(key, "its properties are in an unknown form");
    old_properties_ |= graph_.class_name(object).starts_with(kOldShardModule);
    const std::span<const PickleId> fields = graph_.items(graph_.state(object));
    strides_ |= fields.size() > 5;
    if (!graph_.is(fields[0], PickleKind::global)) return bad(key, "its dtype is no name");
    const std::string_view name = graph_.text(fields[0]);
    if (const std::optional<DType> dtype = torch_dtype_named(name)) return *dtype;
    return Error{Code::unsupported, compose("{}: {}: dtype {} is not read by this version",
                                            graph_.where(), json_string(key), name)};
  }

  Result<Box> read_chunk(std::string_view key, PickleId object, const Shape& shape) {
    EBB_TRY_ASSIGN(const PickleId state, attributes(object, key));
    const PickleId offsets = graph_.find(state, names_.offsets);
    const PickleId sizes = graph_.find(state, names_.sizes);
    Box box;
    if (offsets == kNoPickle || sizes == kNoPickle || !read_shape(offsets, box.offset) ||
        !read_shape(sizes, box.extent))
      return bad(key, "a chunk's offsets or sizes are not made of counts");
    if (box.offset.size() != shape.size() || box.extent.size() != shape.size())
      return bad(key,
                 compose("a chunk has {} offsets and {} sizes, but the tensor has {} dimensions",
                         box.offset.size(), box.extent.size(), shape.size()));
    if (!inside(box, shape))
      return bad(key, compose("chunk {} lies outside the tensor's shape {}", to_string(box),
                              to_string(shape)));
    return box;
  }

  Result<> read_stored(PickleId dict) {
    const std::span<const PickleId> entries = graph_.items(dict);
    Shape offset;
    for (std::size_t i = 0; i + 1 < entries.size(); i += 2) {
      EBB_TRY_ASSIGN(const PickleId state, attributes(entries[i], "storage_data"));
      const PickleId fqn = graph_.find(state, names_.fqn);
      if (!has(fqn, PickleKind::string)) return bad("storage_data", "an entry without a key");
      const std::string_view key = graph_.text(fqn);
      const PickleId at = graph_.find(state, names_.offset);
      const bool tensor = at != kNoPickle && !graph_.is(at, PickleKind::none);
      if (tensor && !read_shape(at, offset))
        return bad(key, "the offset of its storage entry is not made of counts");
      EBB_TRY_ASSIGN(const StoredItem item, read_item(key, entries[i + 1]));
      EBB_TRY_ASSIGN(const Place* place, place_of(fqn));
      if (place == nullptr) continue;
      if (tensor && place->kind == Place::Kind::tensor) {
        if (StoredChunk* chunk = chunk_at(place->index, offset)) chunk->item = item;
      } else if (!tensor && place->kind == Place::Kind::value) {
        index_.values[place->index].item = item;
      }
    }
    return {};
  }

  // Entries mostly come in the order in which the keys were described, one or more of a key.
  // nullptr: the key was not.
  Result<const Place*> place_of(PickleId key) {
    if (next_place_ != 0 && places_[next_place_ - 1].key == key) return &places_[next_place_ - 1];
    if (next_place_ < places_.size() && places_[next_place_].key == key)
      return &places_[next_place_++];
    const std::string_view text = graph_.text(key);
    EBB_TRY(graph_.charge(text.size()));  // one long key may be looked up for every entry
    const auto found = numbers_.find(text);
    if (!found) return nullptr;
    next_place_ = *found + std::size_t{1};
    return &places_[*found];
  }

  // Entries mostly come in the order of the chunks; a tensor where they do not gets its chunks
  // sorted. nullptr: no chunk begins there.
  StoredChunk* chunk_at(std::size_t tensor, const Shape& offset) {
    std::vector<StoredChunk>& chunks = index_.tensors[tensor].chunks;
    ChunkOrder& order = chunk_orders_[tensor];
    if (order.next < chunks.size() && chunks[order.next].box.offset == offset)
      return &chunks[order.next++];
    order.sort(chunks);
    const auto found = order.find(chunks, offset);
    if (found == order.sorted.end()) return nullptr;
    order.next = *found + 1;
    return &chunks[*found];
  }

  // Chunks that begin at the same place have the same item: storage_data knows no other difference.
  void share_items() {
    for (std::size_t t = 0; t < index_.tensors.size(); ++t) {
      std::vector<StoredChunk>& chunks = index_.tensors[t].chunks;
      if (std::all_of(chunks.begin(), chunks.end(), [](const auto& chunk) { return chunk.item; }))
        continue;
      chunk_orders_[t].sort(chunks);
      const std::vector<std::uint32_t>& sorted = chunk_orders_[t].sorted;
      for (std::size_t first = 0, end = 0; first < sorted.size(); first = end) {
        std::optional<StoredItem> item;
        for (; end < sorted.size() &&
               chunks[sorted[end]].box.offset == chunks[sorted[first]].box.offset;
             ++end)
          if (!item) item = chunks[sorted[end]].item;
        for (std::size_t i = first; i < end; ++i)
          if (!chunks[sorted[i]].item) chunks[sorted[i]].item = item;
      }
    }
  }

  Result<StoredItem> read_item(std::string_view key, PickleId object) {
    EBB_TRY_ASSIGN(const PickleId state, attributes(object, key));
    const PickleId path = graph_.find(state, names_.relative_path);
    const PickleId offset = graph_.find(state, names_.offset);
    const PickleId length = graph_.find(state, names_.length);
    const auto count = [this](PickleId id) {
      return has(id, PickleKind::integer) && graph_.integer(id) >= 0;
    };
    if (!has(path, PickleKind::string)) return bad(key, "its storage entry names no file");
    if (!count(offset) || !count(length))
      return bad(key, "the offset or length of its storage entry is no count");
    if (path != last_path_) {
      EBB_TRY_ASSIGN(last_file_, file_number(key, graph_.text(path)));
      last_path_ = path;
    }
    StoredItem item{last_file_, 0, static_cast<std::uint64_t>(graph_.integer(offset)),
                    static_cast<std::uint64_t>(graph_.integer(length))};
    EBB_TRY_ASSIGN(item.zstd,
                   read_transforms(key, graph_.find(state, names_.transform_descriptors)));
    return item;
  }

  Result<std::uint32_t> file_number(std::string_view key, std::string_view name) {
    if (const auto known = file_numbers_.find(name); known != file_numbers_.end())
      return known->second;
    EBB_TRY(check_file_name(key, name));
    const auto number = static_cast<std::uint32_t>(index_.files.size());
    file_numbers_.emplace(name, number);
    index_.files.emplace_back(name);
    return number;
  }

  Result<> check_file_name(std::string_view key, std::string_view name) const {
    const bool plain = !name.empty() && name != "." && name != ".." && name.size() <= 255 &&
                       std::all_of(name.begin(), name.end(), [](char c) {
                         return c != '/' && c != '\\' && static_cast<unsigned char>(c) >= 0x20;
                       });
    if (plain) return {};
    return bad(key, "its payload file " + json_string(name) +
                        " is not a plain file name: it would leave the checkpoint");
  }

  Result<std::uint32_t> read_transforms(std::string_view key, PickleId list) {
    if (list == kNoPickle || graph_.is(list, PickleKind::none)) return std::uint32_t{0};
    if (!graph_.is(list, PickleKind::list) && !graph_.is(list, PickleKind::tuple))
      return bad(key, "its transform descriptors are no list");
    std::uint32_t passes = 0;
    for (const PickleId item : graph_.items(list)) {
      const std::string_view name =
          graph_.is(item, PickleKind::string) ? graph_.text(item) : std::string_view{};
      if (name != "stream.zstd/1" && name != "stream.zstd" && !name.starts_with("stream.zstd/1."))
        return Error{Code::unsupported,
                     compose("{}: {}: stored with extension {}; this version reads stream.zstd/1",
                             graph_.where(), json_string(key), json_string(name))};
      if (++passes > 4) return bad(key, "compressed more than four times");
    }
    return passes;
  }

  Result<> read_paths(PickleId dict) {
    if (dict == kNoPickle || graph_.is(dict, PickleKind::none)) return {};
    bool understood = graph_.is(dict, PickleKind::dict);
    const std::span<const PickleId> entries =
        understood ? graph_.items(dict) : std::span<const PickleId>{};
    for (std::size_t i = 0; i + 1 < entries.size(); i += 2) {
      const bool typed = graph_.is(entries[i], PickleKind::string) &&
                         graph_.is(entries[i + 1], PickleKind::tuple) &&
                         graph_.items(entries[i + 1]).size() <= kMaxPath;
      const std::span<const PickleId> parts =
          typed ? graph_.items(entries[i + 1]) : std::span<const PickleId>{};
      std::vector<PathItem> path;
      path.reserve(parts.size());
      for (const PickleId part : parts) {
        EBB_TRY(graph_.charge(sizeof(PathItem)));
        if (graph_.is(part, PickleKind::string)) {
          EBB_TRY(graph_.charge(graph_.text(part).size()));
          path.emplace_back(std::string(graph_.text(part)));
        } else if (graph_.is(part, PickleKind::integer))
          path.emplace_back(graph_.integer(part));
        else
          understood = false;
      }
      understood = understood && typed;
      if (typed) EBB_TRY(set_path(entries[i], std::move(path)));
    }
    if (!understood)
      index_.notes.emplace_back("planner_data is not a map of key paths; parts of it are ignored");
    return {};
  }

  Result<> set_path(PickleId key, std::vector<PathItem> path) {
    EBB_TRY_ASSIGN(const Place* place, place_of(key));
    if (place == nullptr) return {};
    if (place->kind == Place::Kind::tensor)
      index_.tensors[place->index].path = std::move(path);
    else
      index_.values[place->index].path = std::move(path);
    return {};
  }

  Result<> read_flat_boxes(PickleId dict) {
    if (!has(dict, PickleKind::dict)) return {};
    const std::span<const PickleId> entries = graph_.items(dict);
    for (std::size_t i = 0; i + 1 < entries.size(); i += 2) {
      const PickleId shape = graph_.find(entries[i + 1], "nd_reformulated_orig_global_shape");
      if (shape == kNoPickle) continue;
      const std::string_view key =
          graph_.is(entries[i], PickleKind::string) ? graph_.text(entries[i]) : std::string_view{};
      const std::optional<Shape> own = torch_shape(graph_, shape);
      if (!own || !checked_volume(*own))
        return bad(key, "nd_reformulated_orig_global_shape is not made of counts");
      index_.flat_boxes_of.emplace(key, *own);
    }
    return {};
  }

  void note_unknown(PickleId state) {
    constexpr std::string_view kKnown[] = {"state_dict_metadata", "planner_data", "storage_data",
                                           "storage_meta",        "version",      "mcore_data",
                                           "all_local_plans"};
    const std::span<const PickleId> entries = graph_.items(state);
    for (std::size_t i = 0; i + 1 < entries.size(); i += 2) {
      const std::string_view name = graph_.is(entries[i], PickleKind::string)
                                        ? graph_.text(entries[i])
                                        : std::string_view("?");
      if (std::ranges::find(kKnown, name) == std::end(kKnown))
        index_.notes.push_back("the metadata has a part this version does not know: " +
                               json_string(name));
    }
  }

  // Each release added something.
  void name_producer(PickleId state) {
    const PickleId storage = graph_.find(state, "storage_meta");
    const bool has_storage =
        has(storage, PickleKind::object) && has(graph_.state(storage), PickleKind::dict);
    if (strides_)
      index_.producer = "torch 2.15 or newer";
    else if (graph_.find(state, "version") != kNoPickle)
      index_.producer = "torch 2.9 to 2.14";
    else if (has_storage && graph_.find(graph_.state(storage), "modules") != kNoPickle)
      index_.producer = "torch 2.7 or 2.8";
    else if (has_storage)
      index_.producer = "torch 2.4 to 2.6";
    else
      index_.producer = old_properties_ ? "torch 2.0 to 2.2" : "torch 2.3";
    if (has_storage && is_ours(graph_.state(storage)))
      index_.producer = std::string(kEbbAs) + index_.producer + " lays it out";
  }

  bool is_ours(PickleId storage) const {
    const PickleId id = graph_.find(storage, "save_id");
    return has(id, PickleKind::string) && graph_.text(id).starts_with(kOurSaves);
  }

  struct KnownShape {
    PickleId id = kNoPickle;
    Shape shape;
  };

  // Attributes of the objects that there are many of.
  struct Names {
    PickleName properties{"properties"}, size{"size"}, chunks{"chunks"};
    PickleName offsets{"offsets"}, sizes{"sizes"};
    PickleName fqn{"fqn"}, offset{"offset"}, relative_path{"relative_path"}, length{"length"};
    PickleName transform_descriptors{"transform_descriptors"};
  };

  // Finds chunks by where they begin.
  struct ChunkOrder {
    std::uint32_t next = 0;             // behind the chunk that was found last
    std::vector<std::uint32_t> sorted;  // numbers of chunks by offset; empty until needed

    void sort(const std::vector<StoredChunk>& chunks) {
      if (!sorted.empty()) return;
      sorted.resize(chunks.size());
      std::iota(sorted.begin(), sorted.end(), 0u);
      std::stable_sort(sorted.begin(), sorted.end(), [&](std::uint32_t a, std::uint32_t b) {
        return chunks[a].box.offset < chunks[b].box.offset;
      });
    }
    // The first of those that begin there, else the end.
    std::vector<std::uint32_t>::const_iterator find(const std::vector<StoredChunk>& chunks,
                                                    const Shape& offset) const {
      const auto found = std::lower_bound(
          sorted.begin(), sorted.end(), offset,
          [&](std::uint32_t a, const Shape& wanted) { return chunks[a].box.offset < wanted; });
      return found != sorted.end() && chunks[*found].box.offset == offset ? found : sorted.end();
    }
  };

  const PickleGraph& graph_;
  Index index_;
  Names names_;
  std::array<KnownShape, 64> shapes_;     // those read last, by id
  std::vector<Place> places_;             // in the order of state_dict_metadata
  std::size_t next_place_ = 0;            // behind the one that was found last
  NameTable numbers_;                     // of the keys, as in places_
  std::vector<ChunkOrder> chunk_orders_;  // of Index::tensors
  std::unordered_map<std::string_view, std::uint32_t> file_numbers_;
  PickleId last_path_ = kNoPickle;  // of the entry that was read last
  std::uint32_t last_file_ = 0;
  bool old_properties_ = false;
  bool strides_ = false;
};

}  // namespace

Result<Index> parse_index(const PickleGraph& graph) { return Reader(graph).read(); }

std::string produced_by(std::string_view layer, const std::string& producer) {
  if (!producer.starts_with(kEbbAs)) return compose("{}, {}", layer, producer);
  return compose("{}{}, {}", kEbbAs, layer, producer.substr(kEbbAs.size()));
}

}  // namespace ebb::formats::dcp
