#include "ebb/formats/megatron/whole_tensors.h"

#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/number_text.h"
#include "ebb/formats/core/units.h"
#include "ebb/formats/layout/placements.h"
#include "ebb/formats/megatron/names.h"

namespace ebb::formats::megatron {
namespace {

std::string key_of(const WholePlace& place, std::string_view state) {
  return state.empty() ? place.name : compose("optimizer.state.{}.{}", state, place.name);
}

// As many elements as a tensor's bytes can be counted of.
constexpr std::uint64_t kMostElements = std::uint64_t{1} << 56;

Error too_large(const torch_save::OpenFile& file, const std::string& key, const TorchTensor& part) {
  return Error{Code::corrupt, compose("{}: {}: of shape {}, which is too large", file.where(),
                                      json_string(key), to_string(part.shape))};
}

// How tensor parallelism cuts it.
Placement placement_of(const WholePlace& place) {
  Placement placement;
  if (place.cut == Cut::none || place.cut == Cut::unknown) return placement;
  placement.kind = place.gated ? Placement::Kind::strided : Placement::Kind::shard;
  placement.dim = place.cut == Cut::columns ? 1 : 0;
  placement.split = place.gated ? 2 : 1;
  return placement;
}

}  // namespace

Error WholeTensors::conflict(const torch_save::OpenFile& file, const std::string& key,
                             std::string_view what) const {
  Error error{Code::layout,
              compose("{}: {}: {} (files of two saves)", file.where(), json_string(key), what),
              "bring together the files that one save wrote"};
  error.place.file = checkpoint_.catalog().files[file.number()].name;
  error.place.tensor = key;
  return error;
}

WholeTensors::Known& WholeTensors::known_at(const WholePlace& place, std::string_view state,
                                            const torch_save::OpenFile& file) {
  Catalog& catalog = checkpoint_.building();
  const auto [at, fresh] = known_.try_emplace(
      key_of(place, state), Known{catalog.tensors.size(), std::string(file.where()), {}});
  if (fresh) {
    TensorEntry& entry = catalog.tensors.emplace_back();
    entry.key = at->first;
    Key parsed = parsed_key(at->first);
    entry.name = std::move(parsed.name);
    entry.state = std::move(parsed.state);
  }
  return at->second;
}

void WholeTensors::leave(const WholePlace& place, std::string_view state, UnreadForm form) {
  const auto known = known_.find(key_of(place, state));
  if (known != known_.end()) {
    unread_.emplace(known->second.number, std::move(form));
    return;
  }
  Catalog& catalog = checkpoint_.building();
  TensorEntry entry;
  entry.key = key_of(place, state);
  Key parsed = parsed_key(*entry.key);
  entry.name = std::move(parsed.name);
  entry.state = std::move(parsed.state);
  known_.emplace(*entry.key, Known{catalog.tensors.size(), {}, {}});
  unread_.emplace(catalog.tensors.size(), std::move(form));
  catalog.tensors.push_back(std::move(entry));
}

Result<> WholeTensors::add(const WholePlace& place, std::string_view state,
                           torch_save::OpenFile& file, const RankPlace& rank,
                           const TorchTensor& part) {
  const std::string key = key_of(place, state);
  const Placement placement = placement_of(place);
  Shape shape = part.shape;
  if (placement.kind != Placement::Kind::replicate) {
    if (placement.dim >= shape.size())
      return Error{Code::unsupported,
                   compose("{}: {}: of shape {}, where its name says that ranks cut dimension {}",
                           file.where(), json_string(key), to_string(part.shape), placement.dim)};
    const auto length = checked_mul(shape[placement.dim], ranks_);
    shape[placement.dim] = length.value_or(0);
    if (!length) return too_large(file, key, part);
  }
  Shape stacked = shape;
  if (place.layer) stacked.insert(stacked.begin(), place.layers);
  if (const auto elems = checked_volume(stacked); !elems || *elems > kMostElements)
    return too_large(file, key, part);
  const PlacedAxis axis{ranks_, rank.tensor, placement};
  auto placed = placed_part(shape, {&axis, 1});
  if (!placed) return std::move(placed).error().about(json_string(key)).within(file.where());

  const Known& known = known_at(place, state, file);
  if (unread_.contains(known.number)) return {};
  TensorEntry& entry = checkpoint_.building().tensors[known.number];
  const bool fresh = known.tags.empty() && entry.shape.empty();
  if (fresh) {
    entry.dtype = part.dtype;
    entry.shape = stacked;
  } else if (entry.dtype != part.dtype || entry.shape != stacked) {
    return conflict(file, key,
                    compose("{} {}, in {} {} {}", name_of(part.dtype), to_string(stacked),
                            known.file, name_of(entry.dtype), to_string(entry.shape)));
  }
  for (PlacedBox& box : placed->boxes) {
    TorchTensor mine = part.part(box.at, box.box.extent);
    if (place.layer) {
      box.box.offset.insert(box.box.offset.begin(), *place.layer);
      box.box.extent.insert(box.box.extent.begin(), 1);
      mine.shape.insert(mine.shape.begin(), 1);
      mine.strides.insert(mine.strides.begin(), mine.elems());
    }
    EBB_TRY(
        add_box(key, place.cut != Cut::unknown, file, rank, std::move(box.box), std::move(mine)));
  }
  return {};
}

Result<> WholeTensors::add_box(const std::string& key, bool must_agree, torch_save::OpenFile& file,
                               const RankPlace& rank, Box box, TorchTensor part) {
  Known& known = known_.at(key);
  if (const auto there = known.tags.find(box.offset); there != known.tags.end()) {
    auto same = file.has_same(part, checkpoint_.copy_of(there->second));
    if (!same) return std::move(same).error().about(json_string(key));
    if (*same) return {};
    if (must_agree) return conflict(file, key, "other elements than in " + known.file);
    const TensorEntry& entry = checkpoint_.catalog().tensors[known.number];
    unread_.emplace(
        known.number,
        UnreadForm{"a tensor of which each tensor-parallel rank has a part, in a way that its name "
                   "does not tell",
                   std::string(kConvertHint), entry.dtype, entry.shape});
    return {};
  }
  auto record = file.number_of(part);
  if (!record) return std::move(record).error().about(json_string(key));
  Shape at = box.offset;
  const std::uint64_t tag =
      checkpoint_.add_chunk(known.number, std::move(box), std::move(part), *record,
                            Rank{rank.pipeline * ranks_ + rank.tensor});
  known.tags.emplace(std::move(at), tag);
  return {};
}

Result<> WholeTensors::prove_whole() const {
  const auto& tensors = checkpoint_.catalog().tensors;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (!unread_.contains(i)) EBB_TRY(prove_coverage(tensors[i], checkpoint_.catalog()));
  return {};
}

std::vector<UnreadAt> WholeTensors::unread() const {
  std::vector<UnreadAt> all;
  for (const auto& [number, form] : unread_) all.push_back({number, form});
  return all;
}

}  // namespace ebb::formats::megatron
