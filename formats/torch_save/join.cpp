#include "ebb/formats/torch_save/join.h"

#include <algorithm>

#include "ebb/formats/catalog/key_path.h"
#include "ebb/formats/catalog/resume.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/number_text.h"
#include "ebb/formats/state_dict/groups.h"

namespace ebb::formats::torch_save {
namespace {

// A step that is counted in a tensor of its own.
bool is_step(const TensorEntry& entry) {
  return !entry.path.empty() && is_word(entry.path.back(), "step");
}

// Values that all ranks of a save have alike.
bool is_of_all_ranks(const std::string& key, const std::vector<PathItem>& path) {
  const bool step =
      !path.empty() && (is_word(path.back(), "step") || is_word(path.back(), "global_step"));
  return step || key.find("param_groups") != std::string::npos || may_count_steps(key);
}

Shape key_of(const Box& box) {
  Shape key = box.offset;
  key.insert(key.end(), box.extent.begin(), box.extent.end());
  return key;
}

bool have_common(const RankList& a, const RankList& b) {
  auto mine = a.begin();
  auto its = b.begin();
  while (mine != a.end() && its != b.end()) {
    if (*mine == *its) return true;
    (*mine < *its ? mine : its)++;
  }
  return false;
}

UnreadForm form_of_meshes(const TensorEntry& entry) {
  return {"parts on several device meshes, which do not tell how they belong together",
          "save it with torch.distributed.checkpoint.save", entry.dtype, entry.shape};
}

}  // namespace

void RankJoin::begin(OpenFile& file, const std::string& name, std::uint32_t named,
                     SaidOfParts* said) {
  file_ = &file;
  said_ = said;
  name_ = name;
  named_ = named;
  rank_.reset();
  of_file_.clear();
}

Result<std::uint32_t> RankJoin::end() {
  const std::uint32_t rank = rank_.value_or(named_);
  catalog().files.back().rank = Rank{rank};
  return rank;
}

std::set<std::uint32_t> RankJoin::take_ranks() {
  std::set<std::uint32_t> ranks;
  for (const Ranks& mesh : meshes_) ranks.insert(mesh->begin(), mesh->end());
  meshes_.clear();
  of_file_.clear();
  return ranks;
}

RankJoin::Ranks RankJoin::shared(const Ranks& ranks) {
  Ranks& known = of_file_[ranks.get()];
  if (known == nullptr) known = *meshes_.insert(ranks).first;
  return known;
}

Error RankJoin::conflict(const std::string& key, std::string_view what) const {
  Error error{Code::layout,
              compose("{}: {}: {} (files of two saves)", file_->where(), json_string(key), what),
              "bring together the files that one save wrote"};
  error.place.file = name_;
  error.place.tensor = key;
  error.place.rank = rank_.value_or(named_);
  return error;
}

void RankJoin::leave(const Known& known, UnreadForm form) {
  const TensorEntry& entry = catalog().tensors[known.number];
  if (!form.dtype) form.dtype = entry.dtype;
  if (!form.shape) form.shape = entry.shape;
  unread_.emplace(known.number, std::move(form));
}

Result<> RankJoin::container(const std::vector<PathItem>& path, Value::Kind kind) {
  if (containers_.insert(path).second) catalog().containers.push_back({path, kind});
  return {};
}

// Rank 0's, where ranks have different ones.
Result<> RankJoin::value(const std::vector<PathItem>& path, Value value) {
  const std::string key = joined(path);
  const auto [known, fresh] = values_.emplace(key, catalog().values.size());
  if (fresh) {
    catalog().values.push_back({key, path, std::move(value)});
    return {};
  }
  if (to_json(catalog().values[known->second].value) == to_json(value)) return {};
  if (is_of_all_ranks(key, path))
    return conflict(key, "another value than in " + catalog().files.front().name);
  note_difference(key);
  return {};
}

void RankJoin::note_difference(const std::string& key) {
  if (std::ranges::find(differing_, key) == differing_.end()) differing_.push_back(key);
}

Result<> RankJoin::tensor(const std::vector<PathItem>& path, PickleId id) {
  TensorEntry entry = entry_at(path);
  const std::string key = *entry.key;
  const auto known = keys_.find(key);
  if (known != keys_.end() && unread_.contains(known->second.number)) return {};
  const auto leave_it = [&](UnreadForm form) {
    const auto [its, fresh] = keys_.try_emplace(key, Known{catalog().tensors.size(), name_});
    if (fresh) catalog().tensors.push_back(std::move(entry));
    leave(its->second, std::move(form));
  };
  if (is_sharded_tensor(file_->graph(), id)) {
    found_shards_ = true;
    auto read = file_->sharded().part_of(id);
    if (!read) return std::move(read).error().about(json_string(key));
    if (auto* part = std::get_if<ShardedPart>(&*read)) {
      if (said_ != nullptr)
        if (auto fits = said_->check(path, named_, *part); !fits)
          return conflict(key, fits.error().message);
      return add_part(std::move(entry), std::move(*part));
    }
    return leave_it(std::move(std::get<UnreadForm>(*read))), Result<>();
  }
  auto made = composite_of(file_->graph(), id);
  if (!made) return std::move(made).error().about(json_string(key));
  if (*made) return add_composite(std::move(entry), std::move(**made));
  if (auto form = unread_form(file_->graph(), id)) return leave_it(std::move(*form)), Result<>();
  auto plain = torch_tensor(file_->graph(), id);
  if (!plain) return std::move(plain).error().about(json_string(key));
  if (said_ != nullptr) {
    auto part = said_->part_of(path, named_, *plain);
    if (!part) return conflict(key, part.error().message);
    if (*part) return add_part(std::move(entry), std::move(**part));
  }
  return add_plain(std::move(entry), std::move(*plain));
}

Result<> RankJoin::add_plain(TensorEntry entry, TorchTensor tensor) {
  const std::string key = *entry.key;
  const auto [at, fresh] = keys_.try_emplace(key, Known{catalog().tensors.size(), name_});
  Known& known = at->second;
  if (!fresh) {
    if (known.ranks != nullptr)
      return leave(known,
                   {compose("a tensor of which {} has a part, and {} all", known.file, name_),
                    "save it with torch.distributed.checkpoint.save"}),
             Result<>();
    if (mixes(known, false)) return {};
    return compare(key, known, known.tags.begin()->second, tensor, is_step(entry));
  }
  auto record = file_->number_of(tensor);
  if (!record) return std::move(record).error().about(json_string(key));
  entry.dtype = tensor.dtype;
  entry.shape = tensor.shape;
  catalog().tensors.push_back(std::move(entry));
  Box box = whole(tensor.shape);
  known.tags.emplace(Shape(), checkpoint_.add_chunk(known.number, std::move(box), std::move(tensor),
                                                    *record, Rank{rank_.value_or(named_)}));
  return {};
}

// Whole in each file.
Result<> RankJoin::add_composite(TensorEntry entry, TorchComposite made) {
  const std::string key = *entry.key;
  const auto [at, fresh] = keys_.try_emplace(key, Known{catalog().tensors.size(), name_});
  if (fresh) {
    entry.dtype = made.whole.dtype;
    entry.shape = made.whole.shape;
    catalog().tensors.push_back(std::move(entry));
  }
  if (mixes(at->second, true)) return {};
  Box all = whole(made.whole.shape);
  return add_piece(key, at->second, std::move(all), std::move(made));
}

// True where some of the tensor is made of parts and some is not: then none of it is read.
bool RankJoin::mixes(const Known& known, bool made_of_parts) {
  if (made_of_parts ? known.tags.empty() : !composites_.contains(known.number)) return false;
  leave(known, {"a tensor that some ranks have made of parts, and others not",
                "save it with each rank's dequantize()"});
  return true;
}

Result<> RankJoin::add_piece(const std::string& key, const Known& known, Box box,
                             TorchComposite made) {
  TensorEntry& entry = catalog().tensors[known.number];
  const Rank holder{rank_.value_or(named_)};
  auto piece = file_->piece_of(std::move(made), box, holder);
  if (!piece) return std::move(piece).error().about(json_string(key));
  Chunk chunk = piece->stored.front().chunk;
  const auto join = composites_.try_emplace(known.number, entry.shape).first;
  if (const std::string why = join->second.add(std::move(*piece)); !why.empty()) {
    leave(known,
          {"a tensor made of parts, in " + why, "save it with torch.distributed.checkpoint.save"});
    return {};
  }
  chunk.box = std::move(box);
  const bool there = std::ranges::find(entry.chunks, chunk.box, &Chunk::box) != entry.chunks.end();
  if (!there) entry.chunks.push_back(std::move(chunk));
  return {};
}

PartsOf RankJoin::take_parts() {
  PartsOf parts;
  for (auto& [number, join] : composites_) {
    if (unread_.contains(number)) continue;
    std::vector<TensorEntry> its = join.take();
    TensorEntry& entry = catalog().tensors[number];
    stand_for(its, entry);
    parts.emplace(entry.part_of->whole.get(), std::move(its));
  }
  return parts;
}

Result<> RankJoin::take_rank(const std::string& key, const ShardedPart& part) {
  if (!part.rank || part.rank == rank_) return {};
  if (rank_)
    return Error{Code::layout, compose("{}: {}: the part of rank {} in a file of rank {}",
                                       file_->where(), json_string(key), *part.rank, *rank_)};
  rank_ = part.rank;
  return {};
}

Result<> RankJoin::add_part(TensorEntry entry, ShardedPart part) {
  const std::string key = *entry.key;
  EBB_TRY(take_rank(key, part));
  part.ranks = shared(part.ranks);
  const auto [at, fresh] = keys_.try_emplace(key, Known{catalog().tensors.size(), name_});
  Known& known = at->second;
  if (fresh) {
    entry.dtype = part.dtype;
    entry.shape = part.shape;
    known.ranks = part.ranks;
    catalog().tensors.push_back(std::move(entry));
  } else if (known.ranks == nullptr) {
    return leave(known, {compose("a tensor of which {} has all, and {} a part", known.file, name_),
                         "save it with torch.distributed.checkpoint.save"}),
           Result<>();
  } else {
    EBB_TRY(check_mesh(key, known, part));
  }
  if (unread_.contains(known.number)) return {};
  return add_shards(key, known, part);
}

// Ranks that are in both meshes cannot have cut the tensor in two ways; meshes that have none in
// common may be replicas, or have other tensors under the same key.
Result<> RankJoin::check_mesh(const std::string& key, Known& known, const ShardedPart& part) {
  const TensorEntry& entry = catalog().tensors[known.number];
  const bool alike = entry.dtype == part.dtype && entry.shape == part.shape;
  if (known.ranks == part.ranks || have_common(*known.ranks, *part.ranks)) {
    if (!alike)
      return conflict(key, compose("{} {}, in {} {} {}", name_of(part.dtype), to_string(part.shape),
                                   known.file, name_of(entry.dtype), to_string(entry.shape)));
    if (known.ranks != part.ranks)
      return conflict(key, compose("cut over {} ranks, in {} over {}", part.ranks->size(),
                                   known.file, known.ranks->size()));
    return {};
  }
  known.of_several_meshes = true;
  if (!alike) leave(known, form_of_meshes(entry));
  return {};
}

Result<> RankJoin::add_shards(const std::string& key, Known& known, ShardedPart& part) {
  for (TensorShard& shard : part.shards) {
    if (mixes(known, shard.made.has_value())) return {};
    if (shard.made) {
      EBB_TRY(add_piece(key, known, std::move(shard.box), std::move(*shard.made)));
      continue;
    }
    const Shape place = key_of(shard.box);
    const auto there = known.tags.find(place);
    if (there != known.tags.end()) {
      EBB_TRY(compare(key, known, there->second, shard.tensor, !known.of_several_meshes));
      if (unread_.contains(known.number)) return {};
      continue;
    }
    auto record = file_->number_of(shard.tensor);
    if (!record) return std::move(record).error().about(json_string(key));
    known.tags.emplace(
        place, checkpoint_.add_chunk(known.number, std::move(shard.box), std::move(shard.tensor),
                                     *record, Rank{rank_.value_or(named_)}));
  }
  return {};
}

// `replicas`: they are said to be the same.
Result<> RankJoin::compare(const std::string& key, Known& known, std::uint64_t tag,
                           const TorchTensor& tensor, bool replicas) {
  auto same = file_->has_same(tensor, checkpoint_.copy_of(tag));
  if (!same) return std::move(same).error().about(json_string(key));
  if (*same) return {};
  if (said_ != nullptr && said_->each_has_its_own()) return note_difference(key), Result<>();
  if (replicas) return conflict(key, "other elements than in " + known.file);
  const TensorEntry& entry = catalog().tensors[known.number];
  leave(known,
        known.ranks != nullptr
            ? form_of_meshes(entry)
            : UnreadForm{
                  compose("a tensor that is not the same in the files of ranks {} "
                          "and {}: each has its own, or a part that nothing records, or they are "
                          "of two saves",
                          index_of(entry.chunks.empty() ? Rank{} : entry.chunks.front().holder),
                          rank_.value_or(named_)),
                  "save it with torch.distributed.checkpoint.save"});
  return {};
}

Result<> RankJoin::prove_whole() {
  const auto& tensors = checkpoint_.catalog().tensors;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Known& known = keys_.at(*tensors[i].key);
    if (known.ranks == nullptr || unread_.contains(i)) continue;
    auto covered = prove_coverage(tensors[i], checkpoint_.catalog());
    if (covered) continue;
    if (!known.of_several_meshes) return covered;
    leave(known, form_of_meshes(tensors[i]));
  }
  return {};
}

std::vector<UnreadAt> RankJoin::unread() const {
  const auto& tensors = checkpoint_.catalog().tensors;
  const bool flattened = std::ranges::any_of(tensors, [](const TensorEntry& tensor) {
    return tensor.key && is_flattened_key(*tensor.key);
  });
  std::vector<UnreadAt> all;
  for (const auto& [number, form] : unread_) {
    UnreadForm its = form;
    const auto& known = keys_.at(*tensors[number].key);
    if (flattened && known.ranks == nullptr && !known.tags.empty())
      its = {
          "a rank's part of a parameter that FSDP has flattened: LOCAL_STATE_DICT does not "
          "record its shape",
          "save it as SHARDED_STATE_DICT or FULL_STATE_DICT", form.dtype, form.shape};
    all.push_back({number, std::move(its)});
  }
  return all;
}

std::vector<std::string> RankJoin::notes() const {
  if (differing_.empty()) return {};
  return {compose("{} not the same in the files of all ranks, the first one's is shown: {}",
                  plural(differing_.size(), "value") + (differing_.size() == 1 ? " is" : " are"),
                  some_of(differing_))};
}

}  // namespace ebb::formats::torch_save
