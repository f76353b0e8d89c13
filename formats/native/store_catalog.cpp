#include "ebb/formats/native/store_catalog.h"

#include <algorithm>
#include <set>

#include "ebb/formats/native/setting_text.h"

namespace ebb::formats::native {
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

// Damage of newer generations, and that an older one is shown because of it.
void note_newer(const Survey& survey, std::uint64_t generation, std::vector<std::string>& notes) {
  for (const RankSurvey& rank : survey.ranks)
    for (const RegionFinding& found : rank.scan->regions) {
      if (found.header.is_void || found.header.generation <= generation) continue;
      notes.push_back(compose("rank {} also has generation {}, {}",
                              index_of(rank.scan->superblock.rank), found.header.generation,
                              (found.damage ? "damaged: " + found.damage->message
                                            : "which is not valid on all ranks")));
    }
}

}  // namespace

StoreCatalogBuilder::StoreCatalogBuilder(const Survey& survey, std::uint64_t generation) {
  const Superblock& s = survey.superblock();
  Catalog& catalog = store_.catalog;
  catalog.format = "ebb";
  catalog.world = s.world;
  catalog.partition = compose("tiles of {} bytes over {}{}", s.tile_bytes, s.world,
                              (s.world == 1 ? " rank" : " ranks"));
  catalog.notes.push_back(
      compose("store {}, generation {}, {} slots a tile", to_string(s.store), generation, s.slots));
  if (s.parent != Uuid{}) catalog.notes.push_back("loaded from store " + to_string(s.parent));
  note_newer(survey, generation, catalog.notes);
}

Result<> StoreCatalogBuilder::add(const RankFilesSeen& files, const Superblock& superblock,
                                  Manifest manifest) {
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

Result<> StoreCatalogBuilder::add_segment(const Segment& segment, std::uint64_t tile_at,
                                          std::uint64_t tile, Rank rank) {
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
    return Error{Code::corrupt, compose("{} is {} and {}", label_of(tensor), name_of(tensor.dtype),
                                        name_of(segment.dtype))};
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
    chunk.tag = tile;
    offset += chunk.length;
    tensor.chunks.push_back(std::move(chunk));
  }
  return {};
}

void StoreCatalogBuilder::add_model() {
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
void StoreCatalogBuilder::add_blobs() {
  Catalog& catalog = store_.catalog;
  catalog.values.push_back({"step", {}, Value::of_int(*catalog.step), true});
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

StoreCatalog StoreCatalogBuilder::finish() && {
  add_model();
  add_blobs();
  return std::move(store_);
}

}  // namespace ebb::formats::native
