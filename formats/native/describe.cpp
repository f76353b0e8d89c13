#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "ebb/formats/core/refuse.h"
#include "ebb/formats/native/ebb.h"
#include "ebb/formats/native/encoded_states.h"
#include "ebb/formats/native/store_files.h"
#include "ebb/formats/native/store_model.h"
#include "ebb/formats/native/survey.h"

namespace ebb::formats {
namespace native {
namespace {

bool same_params(const std::vector<Param>& a, const std::vector<Param>& b) {
  return std::ranges::equal(a, b, [](const Param& x, const Param& y) {
    return x.name == y.name && x.shape == y.shape && x.group == y.group;
  });
}

bool same_bytes(const std::vector<Blob>& blobs, const Blob& wanted) {
  return std::ranges::any_of(blobs, [&](const Blob& blob) {
    return blob.key == wanted.key && blob.bytes == wanted.bytes;
  });
}

// Damage of newer generations, and that an older one is shown because of it. A header that cannot
// be read hides its number: it may have been the newest.
void note_newer(const Survey& survey, std::uint64_t generation, std::vector<std::string>& notes) {
  for (const RankSurvey& rank : survey.ranks) {
    for (const Error& unreadable : rank.scan->unreadable)
      notes.push_back(compose("rank {} has a manifest that cannot be read: {}",
                              index_of(rank.scan->superblock.rank), unreadable.message));
    for (const RegionFinding& found : rank.scan->regions) {
      if (found.header.is_void || found.header.generation <= generation) continue;
      notes.push_back(compose("rank {} also has generation {}, {}",
                              index_of(rank.scan->superblock.rank), found.header.generation,
                              (found.damage ? "damaged: " + found.damage->message
                                            : "which is not valid on all ranks")));
    }
  }
}

// A chunk's holder is the rank it lies at; its tag says in which tile, and how it is encoded.
struct StoreCatalog {
  Catalog catalog;
  EncodedStates encoded;
  std::vector<Superblock> superblocks;   // by rank
  std::vector<std::vector<Tile>> tiles;  // by rank; without their segments
};

class StoreCatalogBuilder {
 public:
  StoreCatalogBuilder(const Survey& survey, std::uint64_t generation) {
    const Superblock& s = survey.superblock();
    Catalog& catalog = store_.catalog;
    catalog.format = "ebb";
    catalog.world = s.world;
    catalog.partition = compose("tiles of {} bytes over {}{}", s.tile_bytes, s.world,
                                (s.world == 1 ? " rank" : " ranks"));
    catalog.notes.push_back(compose("store {}, generation {}, {} slots a tile", to_string(s.store),
                                    generation, s.slots));
    if (s.parent != Uuid{}) catalog.notes.push_back("loaded from store " + to_string(s.parent));
    note_newer(survey, generation, catalog.notes);
  }

  struct RankFilesSeen {
    std::string folder;  // in the tree, with the closing slash
    std::uint64_t data_bytes = 0;
    std::uint64_t meta_bytes = 0;
    std::string meta_name;  // for messages
  };
  // Ranks in ascending order. Fails when this one's manifest describes another model or step.
  Result<> add(const RankFilesSeen& files, const Superblock& superblock, Manifest manifest) {
    if (store_.superblocks.empty()) {
      model_ = manifest;
      model_.tiles.clear();
    } else if (manifest.step != model_.step || manifest.states != model_.states ||
               manifest.groups != model_.groups || !same_params(manifest.params, model_.params)) {
      return Error{Code::layout,
                   compose("{}: generation {} is of another model or step here than at rank 0",
                           files.meta_name, manifest.generation)};
    }
    const Rank rank = superblock.rank;
    store_.catalog.files.push_back(
        {files.folder + data_file(superblock.store, rank), files.data_bytes, rank});
    store_.catalog.files.push_back({files.folder + std::string(kMetaFile), files.meta_bytes, rank});
    for (std::size_t i = 0; i < manifest.tiles.size(); ++i) {
      const std::uint64_t tile_at = tile_offset(superblock, i, manifest.tiles[i].slot);
      for (const Segment& segment : manifest.tiles[i].segments)
        if (auto added = add_segment(segment, tile_at, i, rank); !added)
          return std::move(added).error().within(files.meta_name);
      manifest.tiles[i].segments.clear();
      manifest.tiles[i].segments.shrink_to_fit();
    }
    store_.superblocks.push_back(superblock);
    store_.tiles.push_back(std::move(manifest.tiles));
    blobs_.push_back(std::move(manifest.blobs));
    return {};
  }

  Result<StoreCatalog> finish() && {
    add_model();
    add_blobs();
    EBB_TRY_ASSIGN(store_.encoded, EncodedStates::take(store_.catalog.tensors, store_.catalog));
    return std::move(store_);
  }

 private:
  Result<> add_segment(const Segment& segment, std::uint64_t tile_at, std::uint64_t tile,
                       Rank rank) {
    const Param& param = model_.params[segment.param];
    const auto [found, fresh] = tensors_.try_emplace({segment.param, segment.state});
    TensorEntry& tensor = found->second;
    if (fresh) {
      tensor.name = param.name;
      tensor.state = model_.states[segment.state];
      tensor.key = tensor.state + "." + tensor.name;
      tensor.dtype = segment.dtype;
      tensor.shape = param.shape;
    } else if (tensor.dtype != segment.dtype) {
      return Error{Code::corrupt, compose("{} is {} and {}", label_of(tensor),
                                          name_of(tensor.dtype), name_of(segment.dtype))};
    } else if (!tensor.chunks.empty() && encoding_of(tensor.chunks.front()) != segment.encoding) {
      return Error{Code::corrupt, compose("{} is in encodings {} and {}", label_of(tensor),
                                          encoding_of(tensor.chunks.front()), segment.encoding)};
    }
    if (segment.count == 0) return {};
    std::uint64_t offset = tile_at + segment.offset;
    for (Box& box : boxes_of(param.shape, {segment.first, segment.count})) {
      Chunk chunk;
      chunk.length = volume(box.extent) * bytes_of(segment.dtype);
      chunk.box = std::move(box);
      chunk.file = 2 * index_of(rank);  // its data file, beside its meta.ebb
      chunk.offset = offset;
      chunk.holder = rank;
      chunk.tag = tag_of(tile, segment.encoding);
      offset += chunk.length;
      tensor.chunks.push_back(std::move(chunk));
    }
    return {};
  }

  void add_model() {
    Catalog& catalog = store_.catalog;
    catalog.step = static_cast<std::int64_t>(model_.step);
    catalog.producer = "Ebb, store version 1";
    if (!model_.fingerprint.empty()) catalog.producer += ", " + model_.fingerprint;
    for (auto& [place, tensor] : tensors_) catalog.tensors.push_back(std::move(tensor));
    for (const Group& group : model_.groups) {
      GroupEntry entry;
      entry.optimizer = group.optimizer;
      for (const auto& [key, value] : group.settings)
        entry.settings.emplace_back(key, setting_value(value));
      catalog.groups.push_back(std::move(entry));
    }
    std::set<std::string_view> seen;  // a parameter has an entry for each shape of its states
    for (const Param& param : model_.params)
      if (param.group != kNoGroup && seen.insert(param.name).second)
        catalog.groups[param.group].params.push_back(param.name);
  }

  // One value when all ranks stored the same bytes, one a rank otherwise.
  void add_blobs() {
    Catalog& catalog = store_.catalog;
    const std::string step = "step";
    if (std::ranges::find(model_.values, step, &ValueEntry::key) == model_.values.end())
      catalog.values.push_back({step, {}, Value::of_int(*catalog.step), true});
    std::ranges::move(model_.values, std::back_inserter(catalog.values));
    catalog.param_steps = std::move(model_.param_steps);
    for (std::size_t rank = 0; rank < blobs_.size(); ++rank)
      for (Blob& blob : blobs_[rank]) {
        const bool shared = std::ranges::all_of(
            blobs_, [&](const std::vector<Blob>& others) { return same_bytes(others, blob); });
        if (shared && rank > 0) continue;
        const std::string key = shared ? blob.key : compose("{}@rank-{}", blob.key, rank);
        catalog.values.push_back({key, {}, Value::of_bytes(blob.bytes)});
      }
  }

  StoreCatalog store_;
  Manifest model_;  // rank 0's, without its tiles: what must be the same on all ranks
  std::map<std::pair<std::uint32_t, std::uint32_t>, TensorEntry> tensors_;  // by (param, state)
  std::vector<std::vector<Blob>> blobs_;                                    // by rank
};

// The generation that is read, and the lock that keeps a trainer from reusing its slots.
struct Held {
  std::shared_ptr<const SourceTree> tree;
  Survey survey;  // without its own hold
  std::uint64_t generation = 0;
  SourceTree::Hold hold;  // nullptr: it could not be locked
};

class EbbCheckpoint : public Checkpoint {
 public:
  EbbCheckpoint(StoreCatalog catalog, std::vector<std::shared_ptr<const ByteSource>> data,
                Held held)
      : store_(std::move(catalog)), data_(std::move(data)), held_(std::move(held)) {}
  const Catalog& catalog() const override { return store_.catalog; }
  Result<> read_chunk(const TensorEntry& tensor, const Chunk& chunk, std::uint64_t first,
                      std::span<std::byte> into) const override;

 private:
  // What is stored of it.
  Result<> read_stored(const TensorEntry& tensor, const Chunk& chunk, std::uint64_t first,
                       std::span<std::byte> into) const;
  Error mismatch(Error damage) const;

  StoreCatalog store_;
  std::vector<std::shared_ptr<const ByteSource>> data_;  // by rank
  Held held_;
};

Error moved(std::string what) {
  return {Code::moved, std::move(what), "stop the trainer, or let it take snapshots less often"};
}

// Bytes that do not match are damage only while the generation is the newest there is: otherwise
// its slots may have been written again. The manifests are read once more only if some began since.
Error EbbCheckpoint::mismatch(Error damage) const {
  const auto begun = newest_begun(*held_.tree, held_.survey);
  if (begun && *begun == held_.generation) return damage;
  const auto now = survey_store(*held_.tree, held_.survey.folder);
  const std::uint64_t newest = now && now->complete() ? now->committed() : 0;
  if (newest == held_.generation) return damage;
  return moved(compose("{}: generation {} was given up while it was read{}", held_.survey.where,
                       held_.generation,
                       (newest == 0 ? std::string() : compose(", the newest is {}", newest))));
}

Result<> EbbCheckpoint::read_chunk(const TensorEntry& tensor, const Chunk& chunk,
                                   std::uint64_t first, std::span<std::byte> into) const {
  if (encoding_of(chunk) == 0) return read_stored(tensor, chunk, first, into);
  return store_.encoded.read(*this, tensor, chunk, first, into,
                             [&](std::uint64_t from, std::span<std::byte> stored) {
                               return read_stored(tensor, chunk, from, stored);
                             });
}

// Whole blocks are read and checked; what is wanted of the first and the last is copied out.
Result<> EbbCheckpoint::read_stored(const TensorEntry& tensor, const Chunk& chunk,
                                    std::uint64_t first, std::span<std::byte> into) const {
  const std::uint32_t rank = index_of(chunk.holder);
  const std::uint64_t number = tile_of(chunk);
  const Superblock& s = store_.superblocks[rank];
  const Tile& tile = store_.tiles[rank][number];
  const ByteSource& data = *data_[rank];
  const std::uint64_t tile_at = tile_offset(s, number, tile.slot);
  std::uint64_t at = chunk.offset - tile_at + first;  // inside the tile
  ByteVector scratch;
  while (!into.empty()) {
    const std::uint64_t block = at / s.block_bytes;
    const std::uint64_t begin = at - block * s.block_bytes;
    const auto wanted =
        static_cast<std::size_t>(std::min<std::uint64_t>(into.size(), s.block_bytes - begin));
    std::span<std::byte> whole = into.first(wanted);
    if (wanted != s.block_bytes) {
      scratch.resize(static_cast<std::size_t>(s.block_bytes));
      whole = scratch;
    }
    const std::uint64_t block_at = tile_at + block * s.block_bytes;
    EBB_TRY(data.read(block_at, whole));
    const std::uint32_t crc =
        block_crc({s.store, s.rank, number, tile.slot, block, tile.written_step}, whole);
    if (crc != tile.crcs[static_cast<std::size_t>(block)]) {
      Error error = refuse(Code::corrupt, data.name(), block_at,
                           compose("block {} of tile {}, in {}, does not match its checksum", block,
                                   number, label_of(tensor)));
      error.place.tensor = label_of(tensor);
      error.place.rank = static_cast<std::uint32_t>(index_of(s.rank));
      return mismatch(std::move(error));
    }
    if (whole.data() != into.data())
      std::copy_n(whole.begin() + static_cast<std::ptrdiff_t>(begin), wanted, into.begin());
    into = into.subspan(wanted);
    at += wanted;
  }
  return {};
}

// What each rank has, for the message that nothing is common.
std::string newest_of_each(const Survey& survey) {
  std::string text;
  for (std::size_t rank = 0; rank < survey.ranks.size(); ++rank) {
    const auto* newest = survey.ranks[rank].scan->newest_valid(kMaxGeneration);
    text += compose("{}{} has {}", rank == 0 ? "rank " : ", rank ", rank,
                    (newest == nullptr ? "none" : std::to_string(newest->header.generation)));
  }
  return text;
}

Result<Survey> choose_store(const SourceTree& tree) {
  std::vector<Survey> surveys;
  for (const std::string& folder : store_folders(tree)) {
    EBB_TRY_ASSIGN(Survey survey, survey_store(tree, folder));
    surveys.push_back(std::move(survey));
  }
  if (surveys.empty())
    return Error{Code::incomplete, compose("{}: no rank's folder is here", tree.root())};
  const auto current = current_stores(surveys);
  if (current.size() > 1)
    return Error{Code::state,
                 compose("{}: two stores could be meant, {} and {}", tree.root(),
                         surveys[current[0]].where, surveys[current[1]].where),
                 "name one of them"};
  if (!current.empty()) return std::move(surveys[current.front()]);
  for (const Survey& survey : surveys) EBB_TRY(survey.complete());
  return std::move(surveys.front());
}

// Why some rank has no newer generation, where its file says so.
const Error* damage_in(const Survey& survey) {
  for (const RankSurvey& rank : survey.ranks) {
    if (!rank.scan) continue;
    for (const RegionFinding& region : rank.scan->regions)
      if (region.damage) return &*region.damage;
    if (!rank.scan->unreadable.empty()) return &rank.scan->unreadable.front();
  }
  return nullptr;
}

Result<std::uint64_t> choose_generation(const Survey& survey, std::optional<std::uint64_t> wanted) {
  EBB_TRY(survey.complete());
  const std::uint64_t newest = survey.newest_common(wanted.value_or(kMaxGeneration));
  if (wanted ? newest == *wanted : newest != 0) return newest;
  Error none{Code::incomplete,
             compose("{}: {}: newest {}", survey.where,
                     (wanted ? compose("generation {} is not valid on all ranks", *wanted)
                             : std::string("no generation is valid on all ranks")),
                     newest_of_each(survey))};
  if (const Error* damage = damage_in(survey)) {
    none.code = Code::corrupt;
    none.message += "; " + damage->message;
    none.place = damage->place;
  }
  return none;
}

Result<std::shared_ptr<const ByteSource>> open_data(const SourceTree& tree, const Survey& survey,
                                                    const Superblock& s) {
  const std::string name = compose("{}{}/{}", survey.folder, rank_directory(s.rank, s.world),
                                   data_file(s.store, s.rank));
  if (tree.find(name) == nullptr)
    return Error{Code::incomplete,
                 compose("{}/{}: this rank's file is missing", tree.root(), name)};
  EBB_TRY_ASSIGN(auto data, tree.open(name));
  if (data->size() < data_file_bytes(s))
    return Error{Code::corrupt, compose("{}:{}: the file ends here; its tiles need {} bytes",
                                        data->name(), data->size(), data_file_bytes(s))};
  ByteVector header(kBlock);
  EBB_TRY(data->read(0, header));
  EBB_TRY(check_data_header(header, s, data->name()));
  return data;
}

Result<std::unique_ptr<Checkpoint>> describe_chosen(const std::shared_ptr<const SourceTree>& tree,
                                                    std::optional<std::uint64_t> wanted) {
  // Until the generation is chosen and held, the survey holds all of them.
  EBB_TRY_ASSIGN(Survey survey, choose_store(*tree));
  EBB_TRY_ASSIGN(const std::uint64_t generation, choose_generation(survey, wanted));
  Held held{tree, {}, generation, nullptr};
  held.hold = hold_generations(*tree, survey.folder, survey.superblock().world, generation, 1);
  StoreCatalogBuilder builder(survey, generation);
  std::vector<std::shared_ptr<const ByteSource>> sources;
  for (const RankSurvey& rank : survey.ranks) {
    const Superblock& s = rank.scan->superblock;
    EBB_TRY_ASSIGN(auto data, open_data(*tree, survey, s));
    const std::string folder = survey.folder + rank_directory(s.rank, s.world) + "/";
    EBB_TRY_ASSIGN(const auto meta, tree->open(folder + std::string(kMetaFile)));
    const auto* found = rank.scan->newest_valid(generation);
    EBB_TRY_ASSIGN(Manifest manifest, read_manifest(*meta, s, found->region));
    EBB_TRY(builder.add({folder, data->size(), meta->size(), std::string(meta->name())}, s,
                        std::move(manifest)));
    sources.push_back(std::move(data));
  }
  held.survey = std::move(survey);
  held.survey.hold.reset();
  EBB_TRY_ASSIGN(StoreCatalog store, std::move(builder).finish());
  return std::unique_ptr<Checkpoint>(
      std::make_unique<EbbCheckpoint>(std::move(store), std::move(sources), std::move(held)));
}

// What can change between two looks at a store that nobody holds: a number for each rank.
std::vector<std::uint64_t> begun_in(const SourceTree& tree) {
  std::vector<std::uint64_t> begun;
  for (const std::string& folder : store_folders(tree)) {
    const auto survey = survey_store(tree, folder);
    if (!survey) continue;
    for (const RankSurvey& rank : survey->ranks)
      begun.push_back(rank.scan ? rank.scan->newest_seen() : 0);
  }
  return begun;
}

// A trainer that cannot be held may replace one rank's manifests before another's are read: then
// the ranks seem not to fit. Only what is seen twice is so.
Result<std::unique_ptr<Checkpoint>> describe_still(const std::shared_ptr<const SourceTree>& tree,
                                                   std::optional<std::uint64_t> wanted) {
  constexpr int kLooks = 10;
  auto described = describe_chosen(tree, wanted);
  for (int look = 1; !described && look <= kLooks; ++look) {
    const auto before = begun_in(*tree);
    described = describe_chosen(tree, wanted);
    if (described || begun_in(*tree) == before) return described;
  }
  if (described) return described;
  return moved(compose("{}: the store moves faster than its manifests are read: {}", tree->root(),
                       described.error().message));
}

}  // namespace
}  // namespace native

bool detect_ebb(const SourceTree& tree) { return !native::store_folders(tree).empty(); }

Result<std::unique_ptr<Checkpoint>> describe_ebb(std::shared_ptr<const SourceTree> tree) {
  return native::describe_still(tree, std::nullopt);
}

Result<std::unique_ptr<Checkpoint>> describe_ebb_generation(std::shared_ptr<const SourceTree> tree,
                                                            std::uint64_t generation) {
  return native::describe_still(tree, generation);
}

}  // namespace ebb::formats
