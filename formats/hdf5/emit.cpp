#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "ebb/formats/catalog/value_json.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/units.h"
#include "ebb/formats/hdf5/file_image.h"
#include "ebb/formats/hdf5/hdf5.h"
#include "ebb/formats/hdf5/naming.h"

namespace ebb::formats {
namespace hdf5 {
namespace {

constexpr std::string_view kMainFile = "state.h5";
constexpr std::int64_t kVersion = 1;
constexpr std::size_t kMostWord = 1024;
// Of a chunk before compression: what the library's cache holds if nobody tells it otherwise.
constexpr std::uint64_t kChunkBytes = MiB;
// Smaller datasets are stored as they are: the index of their chunks alone takes 2 KiB.
constexpr std::uint64_t kLeastPacked = 4 * KiB;

bool is_word(std::string_view word) {
  return !word.empty() && word.size() <= kMostWord && word != "." && word != ".." &&
         word.find('\0') == std::string_view::npos && word.find('/') == std::string_view::npos;
}

Value numbers(const Shape& from) {
  std::vector<Value> items;
  for (const std::uint64_t number : from)
    items.push_back(Value::of_int(static_cast<std::int64_t>(number)));
  return Value::of_list(std::move(items));
}

Selection box_selection(const Box& box) {
  const Shape ones(box.offset.size(), 1);
  return {Selection::Kind::blocks, box.offset, ones, ones, box.extent};
}

// Where a tensor goes in every file.
struct TensorPlace {
  std::vector<std::string> groups;
  std::string name;
  bool told = true;  // the path says which parameter and state it is
  std::string path() const {
    std::string path;
    for (const std::string& group : groups) path += "/" + group;
    return path + "/" + name;
  }
};

// Gives tensors their paths: the content's own, /state/<parameter>/<state>, or, where that is no
// path or taken, a number.
class Places {
 public:
  TensorPlace place(const TensorEntry& tensor, std::size_t number) {
    TensorPlace place;
    const bool keeps =
        tensor.key && identity_of(*tensor.key) == std::pair(tensor.name, tensor.state);
    place.groups = keeps ? parts_of(*tensor.key) : parts_of("state/" + tensor.name);
    if (!keeps) place.groups.push_back(tensor.state);
    if (!take(place)) {
      place.groups = {"state", compose("#{}", number), "tensor"};
      EBB_CHECK(take(place));
    }
    place.told = identity_of(place.path()) == std::pair(tensor.name, tensor.state);
    return place;
  }

 private:
  // Moves the last word of `groups` to `name`.
  bool take(TensorPlace& place) {
    if (place.groups.empty() || !std::all_of(place.groups.begin(), place.groups.end(), is_word))
      return false;
    place.name = place.groups.back();
    place.groups.pop_back();
    std::string path;
    for (const std::string& group : place.groups) {
      path += "/" + group;
      if (datasets_.contains(path)) return false;
    }
    std::string whole = path + "/" + place.name;
    if (groups_.contains(whole) || !datasets_.insert(std::move(whole)).second) return false;
    for (std::size_t end = path.size(); end > 0 && end != std::string::npos;
         end = path.rfind('/', end - 1))
      groups_.insert(path.substr(0, end));
    return true;
  }

  std::set<std::string> datasets_, groups_;
};

// One file in the making, and which box of the content each dataset holds.
class FileWriter {
 public:
  FileWriter(const Catalog& content, std::optional<Compression> compression)
      : content_(content), compression_(compression) {
    image_.attribute(FileImage::kRoot, "format", Value::of_string(std::string(kFormatMark)));
    image_.attribute(FileImage::kRoot, "format_version", Value::of_int(kVersion));
    image_.attribute(FileImage::kRoot, "generator", Value::of_string("Ebb"));
    if (content.step) image_.attribute(FileImage::kRoot, "step", Value::of_int(*content.step));
  }
  FileImage& image() { return image_; }

  std::uint32_t whole_tensor(const TensorPlace& place, std::uint32_t number) {
    const TensorEntry& tensor = content_.tensors[number];
    return store(place, place.name, {number, whole(tensor.shape)});
  }
  // The `part`-th box of a tensor that this rank holds.
  void box(const TensorPlace& place, std::uint32_t number, const Box& box, Rank rank,
           std::size_t part) {
    const TensorEntry& tensor = content_.tensors[number];
    const std::uint32_t dataset = store(place, part_name(place, part), {number, box});
    image_.attribute(dataset, "global_shape", numbers(tensor.shape));
    image_.attribute(dataset, "offset", numbers(box.offset));
    image_.attribute(dataset, "rank", Value::of_int(index_of(rank)));
  }
  void mapped(const TensorPlace& place, std::uint32_t number,
              const std::vector<Mapping>& mappings) {
    const TensorEntry& tensor = content_.tensors[number];
    const auto dataset =
        image_.virtual_dataset(group(place), place.name, tensor.dtype, tensor.shape, mappings);
    EBB_CHECK(dataset.has_value());
    describe(*dataset, place, tensor);
  }

  static std::string part_name(const TensorPlace& place, std::size_t part) {
    return part == 0 ? place.name : compose("{}#{}", place.name, part);
  }

  OutputFile finish(std::string name, Rank writer) {
    image_.lay_out();
    OutputFile file{std::move(name), image_.file_size(), writer, {}};
    if (compression_) {
      finish_packed(file);
      return file;
    }
    file.fragments.resize(1);
    file.fragments.front().data.emplace<ByteVector>(image_.metadata());
    for (Stored& stored : stored_)
      if (volume(stored.data.box.extent) != 0)
        add(file, image_.place_of(stored.dataset), std::move(stored.data));
    return file;
  }

 private:
  static void add(OutputFile& file, std::uint64_t offset, TensorData data) {
    Fragment& added = file.fragments.emplace_back();
    added.offset = offset;
    added.data.emplace<TensorData>(std::move(data));
  }
  std::uint32_t group(const TensorPlace& place) {
    const auto group = image_.group(place.groups);
    EBB_CHECK(group.has_value());  // Places keeps groups and datasets apart
    return *group;
  }
  std::uint32_t store(const TensorPlace& place, const std::string& name, TensorData data) {
    const TensorEntry& tensor = content_.tensors[data.tensor];
    const Shape& shape = data.box.extent;
    const std::uint32_t width = bytes_of(tensor.dtype);
    std::optional<ChunkGrid> grid;
    if (compression_ && !shape.empty() && volume(shape) * width >= kLeastPacked)
      grid = grid_of(shape, width, kChunkBytes);
    const auto dataset =
        grid ? image_.packed_dataset(group(place), name, tensor.dtype, *grid, compression_->level)
             : image_.dataset(group(place), name, tensor.dtype, shape);
    EBB_CHECK(dataset.has_value());
    describe(*dataset, place, tensor);
    stored_.push_back({*dataset, std::move(data), std::move(grid)});
    return *dataset;
  }
  // Behind the head one item a chunk, and one for each dataset that stays as it is.
  void finish_packed(OutputFile& file) {
    file.size = image_.metadata_size();
    std::vector<std::pair<std::uint32_t, std::uint64_t>> counts;  // of items, by dataset
    for (Stored& stored : stored_) {
      const Box& box = stored.data.box;
      if (volume(box.extent) == 0) continue;
      const std::uint64_t count = stored.grid ? stored.grid->count() : 1;
      counts.emplace_back(stored.dataset, count);
      for (std::uint64_t i = 0; i < count; ++i) {
        TensorData part = stored.data;
        std::uint64_t bytes =
            volume(box.extent) * bytes_of(content_.tensors[stored.data.tensor].dtype);
        if (stored.grid) {
          bytes = stored.grid->chunk_bytes();
          part.box = stored.grid->box(i);
          for (std::size_t d = 0; d < box.offset.size(); ++d) part.box.offset[d] += box.offset[d];
        }
        file.items.push_back({{file.size, bytes}, stored.grid ? Pack::compressed : Pack::as_it_is});
        add(file, file.size, std::move(part));
        file.size += bytes;
      }
    }
    const auto image = std::make_shared<const FileImage>(std::move(image_));
    const auto bytes = [image, counts = std::move(counts)](std::span<const FileRange> places) {
      FileImage::Elsewhere elsewhere;
      std::uint64_t end = image->metadata_size();
      for (const FileRange& place : places) end = std::max(end, place.offset + place.size);
      for (const auto& [dataset, count] : counts) {
        elsewhere.emplace(dataset, places.first(count));
        places = places.subspan(count);
      }
      return image->metadata(elsewhere, end);
    };
    file.head = PackedHead{image->metadata_size(), bytes};
  }
  void describe(std::uint32_t dataset, const TensorPlace& place, const TensorEntry& tensor) {
    image_.attribute(dataset, "dtype", Value::of_string(std::string(name_of(tensor.dtype))));
    if (place.told) return;
    image_.attribute(dataset, "name", Value::of_string(tensor.name));
    image_.attribute(dataset, "state", Value::of_string(tensor.state));
  }

  struct Stored {
    std::uint32_t dataset = 0;
    TensorData data;
    std::optional<ChunkGrid> grid;  // where it is packed
  };

  const Catalog& content_;
  std::optional<Compression> compression_;
  FileImage image_;
  std::vector<Stored> stored_;
};

class Emitter {
 public:
  explicit Emitter(const EmitRequest& request)
      : content_(request.content),
        layout_(request.layout),
        compression_(request.compression),
        main_(request.content, in_one_file() ? compression_ : std::nullopt) {}

  Result<EmitPlan> run() {
    EBB_TRY(add_values());
    for (std::uint32_t i = 0; i < content_.tensors.size(); ++i) EBB_TRY(place_tensor(i));
    if (compression_) plan_.packing = Packing{*compression_, nullptr};
    const std::uint32_t world = layout_.spec().mesh.world();
    if (in_one_file()) {
      for (const auto& [number, place] : placed_) main_.whole_tensor(place, number);
      plan_.files.push_back(main_.finish(std::string(kMainFile), Rank{0}));
      return std::move(plan_);
    }
    for (std::uint32_t rank = 0; rank < world; ++rank) write_rank(Rank{rank});
    for (const auto& [number, place] : placed_) show(number, place);
    plan_.commit_files.push_back(main_.finish(std::string(kMainFile), Rank{0}));
    return std::move(plan_);
  }

 private:
  bool in_one_file() const {
    return layout_.spec().mesh.world() == 1 || layout_.spec().policy == Policy::replicated;
  }

  Result<> place_tensor(std::uint32_t number) {
    const TensorEntry& tensor = content_.tensors[number];
    if (layout_.tensors()[number] != tensor.shape)
      return Error{Code::layout,
                   compose("{} has shape {} but the layout cuts {}", label_of(tensor),
                           to_string(tensor.shape), to_string(layout_.tensors()[number]))};
    std::string why;
    if (!has_type(tensor.dtype))
      why = compose("HDF5 has no type for {}", name_of(tensor.dtype));
    else if (tensor.shape.size() > kMostDims)
      why = compose("HDF5 has at most {} dimensions", kMostDims);
    else if (tensor.name.find('\0') != std::string::npos ||
             tensor.state.find('\0') != std::string::npos)
      why = "HDF5's names end at a zero byte";
    if (why.empty()) {
      placed_.emplace(number, places_.place(tensor, number));
      return {};
    }
    plan_.dropped.push_back(compose("tensor {}: {}", json_string(label_of(tensor)), why));
    plan_.omitted.push_back(number);
    return {};
  }

  // What an attribute can say says an attribute; the rest is JSON.
  Result<> add_values() {
    constexpr std::string_view kOurs[] = {"format", "format_version", "generator", "step"};
    std::set<std::string_view> taken(std::begin(kOurs), std::end(kOurs));
    std::vector<ValueEntry> rest;
    for (const ValueEntry& entry : content_.values) {
      if (entry.key == "step" && content_.step && entry.value.kind == Value::Kind::integer &&
          entry.value.integer == *content_.step)
        continue;  // the root's own attribute
      const bool placed = !entry.path.empty() && entry.path != std::vector<PathItem>{entry.key};
      const bool plain =
          !placed && !entry.key.starts_with("ebb.") && fits_attribute(entry.key, entry.value);
      if (plain && taken.insert(entry.key).second)
        main_.image().attribute(FileImage::kRoot, entry.key, entry.value);
      else
        rest.push_back(entry);
    }
    if (!rest.empty()) EBB_TRY(add_json(kValuesAttribute, values_json(rest)));
    if (!content_.groups.empty()) EBB_TRY(add_json(kGroupsAttribute, groups_json(content_.groups)));
    if (content_.param_steps.empty()) return {};
    return add_json(kParamStepsAttribute, param_steps_json(content_.param_steps));
  }

  Result<> add_json(std::string_view name, std::string json) {
    if (json.size() > kMaxJson)
      return Error{Code::limit, compose("the values are {} bytes of JSON, the limit is {}",
                                        json.size(), kMaxJson)};
    main_.image().attribute(FileImage::kRoot, name, Value::of_string(std::move(json)));
    return {};
  }

  static std::string rank_file(Rank rank) { return compose("rank{}.h5", index_of(rank)); }

  void write_rank(Rank rank) {
    FileWriter file(content_, compression_);
    for (const auto& [number, place] : placed_) {
      // Virtual datasets have dimensions and elements: what has none is in the main file.
      const Shape& shape = content_.tensors[number].shape;
      if (shape.empty() || volume(shape) == 0) continue;
      std::size_t part = 0;
      for (const Piece& piece : layout_.pieces(number, rank)) {
        auto& mappings = mappings_[number];
        const Selection target = box_selection(piece.box);
        const auto same = [&](const Mapping& other) {
          return other.target.start == target.start && other.target.block == target.block;
        };
        if (std::ranges::any_of(mappings, same)) continue;  // a replica
        TensorPlace at = place;
        at.name = FileWriter::part_name(place, part);
        mappings.push_back({rank_file(rank), at.path(), {}, target});
        file.box(place, number, piece.box, rank, part++);
      }
    }
    plan_.files.push_back(file.finish(rank_file(rank), rank));
  }

  void show(std::uint32_t number, const TensorPlace& place) {
    const auto mappings = mappings_.find(number);
    if (mappings == mappings_.end())
      main_.whole_tensor(place, number);
    else
      main_.mapped(place, number, mappings->second);
  }

  const Catalog& content_;
  const Layout& layout_;
  std::optional<Compression> compression_;
  FileWriter main_;
  Places places_;
  std::map<std::uint32_t, TensorPlace> placed_;  // by number
  std::map<std::uint32_t, std::vector<Mapping>> mappings_;
  EmitPlan plan_;
};

}  // namespace
}  // namespace hdf5

Result<EmitPlan> emit_hdf5(const EmitRequest& request) {
  if (request.layout.tensors().size() != request.content.tensors.size())
    return Error{Code::layout,
                 compose("the layout is of {} tensors, the content of {}",
                         request.layout.tensors().size(), request.content.tensors.size())};
  return hdf5::Emitter(request).run();
}

}  // namespace ebb::formats
