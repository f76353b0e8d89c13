#include "ebb/formats/native/ebb.h"

#include <algorithm>
#include <string>
#include <utility>

#include "ebb/formats/core/refuse.h"
#include "ebb/formats/native/store_catalog.h"

namespace ebb::formats {
namespace {

using native::Manifest;
using native::StoreCatalog;
using native::Superblock;
using native::Survey;
using native::Tile;

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
  const auto now = native::survey_store(*held_.tree, held_.survey.folder);
  const std::uint64_t newest = now && now->complete() ? now->committed() : 0;
  if (newest == held_.generation) return damage;
  return moved(compose("{}: generation {} was given up while it was read{}", held_.survey.where,
                       held_.generation,
                       (newest == 0 ? std::string() : compose(", the newest is {}", newest))));
}

// Whole blocks are read and checked; what is wanted of the first and the last is copied out.
Result<> EbbCheckpoint::read_chunk(const TensorEntry& tensor, const Chunk& chunk,
                                   std::uint64_t first, std::span<std::byte> into) const {
  const std::uint32_t rank = index_of(chunk.holder);
  const Superblock& s = store_.superblocks[rank];
  const Tile& tile = store_.tiles[rank][chunk.tag];
  const ByteSource& data = *data_[rank];
  const std::uint64_t tile_at = native::tile_offset(s, chunk.tag, tile.slot);
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
        native::block_crc({s.store, s.rank, chunk.tag, tile.slot, block, tile.written_step}, whole);
    if (crc != tile.crcs[static_cast<std::size_t>(block)]) {
      Error error = refuse(Code::corrupt, data.name(), block_at,
                           compose("block {} of tile {}, in {}, does not match its checksum", block,
                                   chunk.tag, label_of(tensor)));
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
    const auto* newest = survey.ranks[rank].scan->newest_valid(native::kMaxGeneration);
    text += compose("{}{} has {}", rank == 0 ? "rank " : ", rank ", rank,
                    (newest == nullptr ? "none" : std::to_string(newest->header.generation)));
  }
  return text;
}

Result<Survey> choose_store(const SourceTree& tree) {
  std::vector<Survey> surveys;
  for (const std::string& folder : native::store_folders(tree)) {
    EBB_TRY_ASSIGN(Survey survey, native::survey_store(tree, folder));
    surveys.push_back(std::move(survey));
  }
  if (surveys.empty())
    return Error{Code::incomplete, compose("{}: no rank's folder is here", tree.root())};
  const auto current = native::current_stores(surveys);
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
  for (const native::RankSurvey& rank : survey.ranks) {
    if (!rank.scan) continue;
    for (const native::RegionFinding& region : rank.scan->regions)
      if (region.damage) return &*region.damage;
    if (!rank.scan->unreadable.empty()) return &rank.scan->unreadable.front();
  }
  return nullptr;
}

Result<std::uint64_t> choose_generation(const Survey& survey, std::optional<std::uint64_t> wanted) {
  EBB_TRY(survey.complete());
  const std::uint64_t newest = survey.newest_common(wanted.value_or(native::kMaxGeneration));
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
  const std::string name =
      compose("{}{}/{}", survey.folder, native::rank_directory(s.rank, s.world),
              native::data_file(s.store, s.rank));
  if (tree.find(name) == nullptr)
    return Error{Code::incomplete,
                 compose("{}/{}: this rank's file is missing", tree.root(), name)};
  EBB_TRY_ASSIGN(auto data, tree.open(name));
  if (data->size() < native::data_file_bytes(s))
    return Error{Code::corrupt, compose("{}:{}: the file ends here; its tiles need {} bytes",
                                        data->name(), data->size(), native::data_file_bytes(s))};
  ByteVector header(native::kBlock);
  EBB_TRY(data->read(0, header));
  EBB_TRY(native::check_data_header(header, s, data->name()));
  return data;
}

Result<std::unique_ptr<Checkpoint>> describe_chosen(const std::shared_ptr<const SourceTree>& tree,
                                                    std::optional<std::uint64_t> wanted) {
  // Until the generation is chosen and held, the survey holds all of them.
  EBB_TRY_ASSIGN(Survey survey, choose_store(*tree));
  EBB_TRY_ASSIGN(const std::uint64_t generation, choose_generation(survey, wanted));
  Held held{tree, {}, generation, nullptr};
  held.hold =
      native::hold_generations(*tree, survey.folder, survey.superblock().world, generation, 1);
  native::StoreCatalogBuilder builder(survey, generation);
  std::vector<std::shared_ptr<const ByteSource>> sources;
  for (const native::RankSurvey& rank : survey.ranks) {
    const Superblock& s = rank.scan->superblock;
    EBB_TRY_ASSIGN(auto data, open_data(*tree, survey, s));
    const std::string folder = survey.folder + native::rank_directory(s.rank, s.world) + "/";
    EBB_TRY_ASSIGN(const auto meta, tree->open(folder + std::string(native::kMetaFile)));
    const auto* found = rank.scan->newest_valid(generation);
    EBB_TRY_ASSIGN(Manifest manifest, native::read_manifest(*meta, s, found->region));
    EBB_TRY(builder.add({folder, data->size(), meta->size(), std::string(meta->name())}, s,
                        std::move(manifest)));
    sources.push_back(std::move(data));
  }
  held.survey = std::move(survey);
  held.survey.hold.reset();
  return std::unique_ptr<Checkpoint>(std::make_unique<EbbCheckpoint>(
      std::move(builder).finish(), std::move(sources), std::move(held)));
}

// What can change between two looks at a store that nobody holds: a number for each rank.
std::vector<std::uint64_t> begun_in(const SourceTree& tree) {
  std::vector<std::uint64_t> begun;
  for (const std::string& folder : native::store_folders(tree)) {
    const auto survey = native::survey_store(tree, folder);
    if (!survey) continue;
    for (const native::RankSurvey& rank : survey->ranks)
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

bool detect_ebb(const SourceTree& tree) { return !native::store_folders(tree).empty(); }

Result<std::unique_ptr<Checkpoint>> describe_ebb(std::shared_ptr<const SourceTree> tree) {
  return describe_still(tree, std::nullopt);
}

Result<std::unique_ptr<Checkpoint>> describe_ebb_generation(std::shared_ptr<const SourceTree> tree,
                                                            std::uint64_t generation) {
  return describe_still(tree, generation);
}

}  // namespace ebb::formats
