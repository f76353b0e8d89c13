#include <algorithm>
#include <map>

#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/units.h"
#include "ebb/formats/hdf5/file_set.h"
#include "ebb/formats/hdf5/filters.h"
#include "ebb/formats/hdf5/hdf5.h"
#include "ebb/formats/hdf5/meaning.h"
#include "ebb/formats/hdf5/naming.h"
#include "ebb/formats/hdf5/storage.h"
#include "ebb/formats/state_dict/numbers.h"

namespace ebb::formats {
namespace hdf5 {
namespace {

constexpr std::size_t kMaxPieces = 16'000'000;
constexpr std::uint32_t kMaxRanks = 1u << 20;

class Hdf5Checkpoint : public Checkpoint {
 public:
  explicit Hdf5Checkpoint(std::shared_ptr<const SourceTree> tree) : tree_(std::move(tree)) {}

  const Catalog& catalog() const override { return catalog_; }

  Result<> read_chunk(const TensorEntry&, const Chunk& chunk, std::uint64_t first,
                      std::span<std::byte> into) const override {
    const Place& place = places_[static_cast<std::size_t>(chunk.tag)];
    return read_place(*tree_, *sources_[place.file], codings_[place.coding], place, first, into);
  }

 private:
  friend class Describer;
  std::shared_ptr<const SourceTree> tree_;
  Catalog catalog_;
  std::vector<std::shared_ptr<const ByteSource>> sources_;
  std::vector<Coding> codings_;
  std::vector<Place> places_;  // by Chunk::tag
};

// What a selection selects, when that is one box.
std::optional<Box> box_of(const Selection& selection, const Shape& shape) {
  if (selection.kind == Selection::Kind::everything) return whole(shape);
  const std::size_t dims = shape.size();
  if (selection.kind != Selection::Kind::blocks || selection.start.size() != dims ||
      selection.stride.size() != dims || selection.count.size() != dims ||
      selection.block.size() != dims)
    return std::nullopt;
  Box box{selection.start, selection.block};
  for (std::size_t d = 0; d < dims; ++d) {
    if (selection.count[d] == 1) continue;
    if (selection.stride[d] != selection.block[d]) return std::nullopt;
    const auto extent = checked_mul(selection.block[d], selection.count[d]);
    if (!extent) return std::nullopt;
    box.extent[d] = *extent;
  }
  return inside(box, shape) ? std::optional(box) : std::nullopt;
}

class Describer {
 public:
  Describer(FileSet files, std::shared_ptr<const SourceTree> tree)
      : files_(std::move(files)), checkpoint_(std::make_unique<Hdf5Checkpoint>(std::move(tree))) {}

  Result<std::unique_ptr<Checkpoint>> run() {
    Catalog& catalog = checkpoint_->catalog_;
    catalog.format = "hdf5";
    for (const File& file : files_.files()) {
      catalog.files.push_back({file.name, file.source->size(), std::nullopt});
      checkpoint_->sources_.push_back(file.source);
      catalog.notes.insert(catalog.notes.end(), file.notes.begin(), file.notes.end());
      for (const std::string& note : file.description.notes) add_note(note);
    }
    EBB_TRY(refuse_what_leads_away());
    for (std::size_t i = 0; i < files_.files().size(); ++i)
      for (const auto& [path, number] : files_.files()[i].listed) EBB_TRY(add(i, path, number));
    EBB_TRY(prove_coverage(catalog));
    EBB_TRY(read_values(files_, catalog));
    for (const std::string& note : said_by_order(catalog).lines()) add_note(note);
    add_note_on_checksums();
    catalog.world = world_;
    catalog.partition =
        world_ == 1 ? "whole tensors in one file" : compose("boxes over {} ranks", world_);
    return std::unique_ptr<Checkpoint>(std::move(checkpoint_));
  }

 private:
  Error bad(std::size_t file, const Dataset& dataset, Code code, const std::string& why) const {
    return {code,
            compose("{}: {}: {}", files_.files()[file].shown(), printable(dataset.path), why)};
  }

  void add_note(const std::string& note) {
    auto& notes = checkpoint_->catalog_.notes;
    if (std::ranges::find(notes, note) == notes.end()) notes.push_back(note);
  }

  // fletcher32 notices a changed byte, deflate by zlib's Adler-32, zstd where the writer asked for
  // a checksum, as ours does.
  void add_note_on_checksums() {
    const bool ours = checkpoint_->catalog_.producer == "Ebb";
    const auto notices = [&](const Filter& filter) {
      return filter.id == kFletcher32 || filter.id == kDeflate || (ours && filter.id == kZstd);
    };
    std::size_t all = 0, checked = 0;
    for (const Coding& coding : checkpoint_->codings_) {
      if (coding.path.empty()) continue;  // of what has no elements
      ++all;
      checked += std::any_of(coding.filters.begin(), coding.filters.end(), notices) ? 1 : 0;
    }
    if (checked == all) return;
    const std::string which = checked == 0 ? "its" : compose("{} of {}", all - checked, all);
    add_note(which + " datasets have no checksums: a changed byte of data cannot be seen");
  }

  // Before any dataset is looked at closely: raw data in other files is the oldest trick.
  Result<> refuse_what_leads_away() const {
    for (std::size_t i = 0; i < files_.files().size(); ++i)
      for (const Dataset& dataset : files_.files()[i].description.datasets)
        if (!dataset.external.empty()) {
          const std::string& name = dataset.external.front().name;
          const bool outside = beside(files_.files()[i].name, name).empty();
          return bad(i, dataset, Code::unsupported,
                     compose("raw data in an external file{}: {}",
                             outside ? " outside the checkpoint" : "", printable(name)));
        }
    return {};
  }

  Result<> add(std::size_t file, const std::string& path, std::size_t number) {
    const Dataset& dataset = files_.files()[file].description.datasets[number];
    if (files_.sources().contains({file, dataset.path})) return {};
    if (dataset.text || !dataset.has_space) return {};  // a value: read_values() takes it
    EBB_TRY_ASSIGN(const Elements elements, elements(file, dataset));
    EBB_TRY_ASSIGN(const Meaning meaning,
                   meaning_of(files_.files()[file], dataset, path, elements.dtype));
    EBB_TRY_ASSIGN(TensorEntry * tensor, tensor_for(file, dataset, path, meaning));
    if (meaning.rank >= kMaxRanks)
      return bad(file, dataset, Code::corrupt, compose("rank {}", meaning.rank));
    const Box box{meaning.offset, dataset.shape};
    if (dataset.layout == Dataset::Layout::mapped) return add_mapped(file, dataset, *tensor);
    world_ = std::max(world_, meaning.rank + 1);
    return add_stored({file, Rank{meaning.rank}}, dataset, whole(dataset.shape), box, *tensor);
  }

  // A piece of a tensor that an earlier file began, or a new tensor.
  Result<TensorEntry*> tensor_for(std::size_t file, const Dataset& dataset, const std::string& path,
                                  const Meaning& meaning) {
    auto& tensors = checkpoint_->catalog_.tensors;
    const auto [known, is_new] = tensor_of_.emplace(path, tensors.size());
    if (is_new) {
      TensorEntry tensor{.key = path, .name = meaning.name, .state = meaning.state};
      tensor.dtype = meaning.dtype;
      tensor.shape = meaning.global_shape;
      tensors.push_back(std::move(tensor));
      whole_.push_back(meaning.global_shape == dataset.shape);
      return &tensors.back();
    }
    TensorEntry& tensor = tensors[known->second];
    if (whole_[known->second] || meaning.global_shape == dataset.shape)
      return bad(file, dataset, Code::layout,
                 "is in another file too, and neither says that it is a part");
    if (tensor.shape != meaning.global_shape || tensor.dtype != meaning.dtype)
      return bad(
          file, dataset, Code::corrupt,
          compose("is a part of {} {}, in another file of {} {}", name_of(meaning.dtype),
                  to_string(meaning.global_shape), name_of(tensor.dtype), to_string(tensor.shape)));
    return &tensor;
  }

  // What a dataset's elements are, when they are a tensor's, and no more than 64 bits count.
  Result<Elements> elements(std::size_t file, const Dataset& dataset) const {
    const std::optional<Elements> known = elements_of(dataset.type);
    if (!known || bytes_of(known->dtype) != dataset.type.size)
      return bad(file, dataset, Code::unsupported,
                 "elements of type " + printable(dataset.type.words) + " are no tensor's");
    if (auto bytes = plain_bytes(dataset, dataset.type.size); !bytes)
      return std::move(bytes).error().within(files_.files()[file].shown());
    return *known;
  }

  struct Holder {
    std::size_t file;
    Rank rank;
  };

  // The pieces of `from` of a stored dataset become chunks of the tensor that fill `target`, which
  // has as many elements.
  Result<> add_stored(const Holder& holder, const Dataset& dataset, const Box& from,
                      const Box& target, TensorEntry& tensor) {
    const File& file = files_.files()[holder.file];
    const std::uint32_t width = bytes_of(tensor.dtype);
    if (auto checked = check_storage(dataset, width, file.bytes()); !checked)
      return std::move(checked).error().within(file.shown());
    if (volume(from.extent) == 0) {
      tensor.chunks.push_back({target, static_cast<std::uint32_t>(holder.file), 0, 0, holder.rank,
                               add_place({.dense = from.extent, .part = whole(from.extent)})});
      return {};
    }
    EBB_TRY_ASSIGN(const std::uint32_t coding, coding_of(holder.file, dataset));
    const std::vector<Stored> pieces = stored_pieces(dataset, width, from, file.superblock.at);
    if (pieces.size() > kMaxPieces - checkpoint_->places_.size())
      return Error{Code::limit,
                   compose("{}: more than {} chunks in the checkpoint", file.shown(), kMaxPieces)};
    const bool same_form = from.extent == target.extent;
    for (const Stored& piece : pieces) {
      const std::optional<Box> taken = intersect(piece.box, from);
      EBB_CHECK(taken.has_value());
      if (!same_form && *taken != from)
        return bad(holder.file, dataset, Code::unsupported,
                   "its chunks are shown in another shape by a virtual dataset");
      Place place{coding,        static_cast<std::uint32_t>(holder.file),
                  piece.address, piece.bytes,
                  piece.skipped, piece.dense,
                  *taken};
      Box box = target;
      for (std::size_t d = 0; d < taken->offset.size(); ++d) {
        place.part.offset[d] -= piece.box.offset[d];
        if (!same_form) continue;
        box.offset[d] += taken->offset[d] - from.offset[d];
        box.extent[d] = taken->extent[d];
      }
      add_chunk(holder, std::move(box), std::move(place), tensor);
    }
    return {};
  }

  void add_chunk(const Holder& holder, Box box, Place place, TensorEntry& tensor) {
    const Coding& coding = checkpoint_->codings_[place.coding];
    Chunk chunk{std::move(box), place.file, place.address, place.bytes, holder.rank, 0};
    // Of a plain array the chunk is the bytes from its first element to its last.
    if (coding.filters.empty() && !coding.compact) {
      std::uint64_t first = 0, last = 0;
      for (std::size_t d = 0; d < place.dense.size(); ++d) {
        first = first * place.dense[d] + place.part.offset[d];
        last = last * place.dense[d] + place.part.offset[d] + place.part.extent[d] - 1;
      }
      chunk.offset += first * coding.elem_bytes;
      chunk.length = (last - first + 1) * coding.elem_bytes;
    }
    if (coding.compact) chunk.offset = chunk.length = 0;
    chunk.tag = add_place(std::move(place));
    tensor.chunks.push_back(std::move(chunk));
  }

  std::uint64_t add_place(Place place) {
    checkpoint_->places_.push_back(std::move(place));
    if (checkpoint_->codings_.empty()) checkpoint_->codings_.push_back({});
    return checkpoint_->places_.size() - 1;
  }

  Result<std::uint32_t> coding_of(std::size_t file, const Dataset& dataset) {
    auto& codings = checkpoint_->codings_;
    const auto [known, is_new] = coding_of_.emplace(std::pair(file, dataset.path), codings.size());
    if (!is_new) return static_cast<std::uint32_t>(known->second);
    EBB_TRY_ASSIGN(const Elements types, elements(file, dataset));
    codings.push_back({dataset.path, types, bytes_of(types.dtype), dataset.filters, dataset.content,
                       dataset.layout == Dataset::Layout::compact});
    return static_cast<std::uint32_t>(known->second);
  }

  Result<> add_mapped(std::size_t file, const Dataset& dataset, TensorEntry& tensor) {
    std::map<std::size_t, std::uint32_t> ranks;  // source files in order of their first use
    for (const Mapping& mapping : dataset.mappings) {
      if (mapping.source.kind == Selection::Kind::none) continue;
      EBB_TRY_ASSIGN(const FileSet::Source source, files_.source_of(file, dataset, mapping));
      const Dataset& stored = *source.dataset;
      const auto bad_mapping = [&](Code code, const std::string& why) {
        return bad(file, dataset, code,
                   compose("its source {} in {} {}", printable(stored.path),
                           printable(mapping.file), why));
      };
      if (stored.layout == Dataset::Layout::mapped)
        return bad_mapping(Code::unsupported, "is virtual itself, which is not read");
      EBB_TRY_ASSIGN(const Elements types, elements(source.file, stored));
      EBB_TRY_ASSIGN(const Elements shown, elements(file, dataset));
      if (types.dtype != shown.dtype)
        return bad_mapping(Code::unsupported,
                           compose("holds {}, not {}", name_of(types.dtype), name_of(shown.dtype)));
      const std::optional<Box> from = box_of(mapping.source, stored.shape);
      const std::optional<Box> target = box_of(mapping.target, dataset.shape);
      if (!from || !target)
        return bad_mapping(Code::unsupported,
                           "is mapped by a selection that is no box inside its dataset");
      if (volume(from->extent) != volume(target->extent))
        return bad_mapping(Code::corrupt, compose("gives {} for {}, which is not as much",
                                                  to_string(*from), to_string(*target)));
      const auto rank = ranks.emplace(source.file, ranks.size()).first->second;
      const std::uint32_t writer = rank_of(files_.files()[source.file], stored).value_or(rank);
      if (writer >= kMaxRanks) return bad_mapping(Code::corrupt, "is of an impossible rank");
      world_ = std::max(world_, writer + 1);
      if (volume(from->extent) == 0) continue;
      EBB_TRY(add_stored({source.file, Rank{writer}}, stored, *from, *target, tensor));
      checkpoint_->catalog_.files[source.file].rank = Rank{writer};
    }
    if (tensor.chunks.empty() && volume(tensor.shape) == 0)
      tensor.chunks.push_back({whole(tensor.shape), static_cast<std::uint32_t>(file), 0, 0, Rank{},
                               add_place({.dense = tensor.shape, .part = whole(tensor.shape)})});
    return {};
  }

  FileSet files_;
  std::unique_ptr<Hdf5Checkpoint> checkpoint_;
  std::map<std::string, std::size_t> tensor_of_;  // by key
  std::vector<bool> whole_;                       // by tensor: no file says it is a part
  std::map<std::pair<std::size_t, std::string>, std::size_t> coding_of_;
  std::uint32_t world_ = 1;
};

}  // namespace
}  // namespace hdf5

bool detect_hdf5(const SourceTree& tree) {
  const auto& entries = tree.entries();
  // Further down there may be files of this one, but what begins there is another checkpoint.
  const bool begins_here = std::ranges::any_of(entries, [](const auto& entry) {
    return entry.name.find('/') == std::string::npos && hdf5::looks_like_hdf5(entry.name);
  });
  if (begins_here) return true;
  if (entries.size() != 1) return false;
  const auto file = tree.open(entries.front().name);
  return file && hdf5::has_signature(**file);
}

Result<std::unique_ptr<Checkpoint>> describe_hdf5(std::shared_ptr<const SourceTree> tree) {
  EBB_TRY_ASSIGN(hdf5::FileSet files, hdf5::FileSet::open(tree));
  return hdf5::Describer(std::move(files), std::move(tree)).run();
}

}  // namespace ebb::formats
