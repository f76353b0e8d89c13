#include "ebb/libmuon/step/stored_state.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

#include "ebb/formats/core/float_cast.h"
#include "ebb/formats/core/halves.h"
#include "ebb/formats/core/int8_blocks.h"
#include "ebb/formats/core/json_text.h"

namespace ebb::libmuon {

using formats::native::Segment;

namespace {

using StateNames = std::vector<std::string>;

constexpr std::uint64_t kReadAtOnce = 64u << 10;  // elements that become codes, or halves

// Those of the tiles of such visits, without the weights. Scales are none of their own.
StateNames states_of(const Columns& columns, TileKind kind) {
  const StateNames names = state_names();
  StateNames found;
  for (const Column& column : columns.of(kind))
    if (column.state != kMaster && !column.in_blocks()) found.push_back(names[column.state]);
  return found;
}

// What it is called in another format may be none of ours: that is read as fp32, and so is what
// codes are made of.
DType dtype_in(const Columns& columns, std::string_view state) {
  const auto number = state_number(state);
  return number ? columns.dtype(*number) : DType::f32;
}
DType read_as(const Columns& columns, std::string_view state) {
  const DType dtype = dtype_in(columns, state);
  return dtype == DType::i8 || dtype == DType::u16 ? DType::f32 : dtype;
}

bool all_finite(std::span<const float> values) {
  return std::ranges::all_of(values, [](float value) { return std::isfinite(value); });
}

Result<> check_state(const TensorEntry* tensor, const ParamSpec& param, const Shape& shape,
                     std::string_view state, const Catalog& catalog) {
  const std::string what = compose("{} of {}", state, param.name);
  if (tensor == nullptr)
    return Error{Code::incomplete, compose("the {} checkpoint has no {}", catalog.format, what),
                 "ckpt-inspect --tensors lists what it has"};
  if (tensor->shape != shape)
    return Error{Code::layout,
                 compose("{} has shape {} in the checkpoint, {} in the model", what,
                         formats::to_string(tensor->shape), formats::to_string(shape))};
  if (tensor->dtype != DType::f32 && tensor->dtype != DType::bf16)
    return Error{Code::unsupported, compose("{} is stored as {}; F32 and BF16 can be resumed", what,
                                            name_of(tensor->dtype))};
  return {};
}

// Names as people read them, the first of many. Borrows them.
class Named {
 public:
  void add(std::string_view name) { names_.push_back(name); }
  std::string text(std::size_t most) const {
    std::string text;
    for (std::size_t i = 0; i < std::min(most, names_.size()); ++i)
      text += compose("{}{}", i == 0 ? "" : ", ", printable(names_[i]));
    if (names_.size() > most) text += compose(" and {} more", names_.size() - most);
    return text;
  }
  void append_to(std::string& all, std::string_view kind) const {
    constexpr std::size_t kMostNamed = 100;
    if (names_.empty()) return;
    all += compose("{}{}: {}", all.empty() ? "" : "; ", kind, text(kMostNamed));
  }

 private:
  std::vector<std::string_view> names_;
};

// How a parameter may differ from what is stored, in the order in which it is told.
enum class Way : std::uint8_t { fresh, untrained, to_muon, to_adam, normalised, to_trainer, lost };
constexpr std::array<std::string_view, 7> kWays = {"new",
                                                   "not trained until now",
                                                   "by AdamW until now, by Muon from zero momentum",
                                                   "by Muon until now, by AdamW from zero moments",
                                                   "second moments from zero",
                                                   "masters left to the trainer",
                                                   "not in the model any more"};

class Comparison {
 public:
  Comparison(const Catalog& catalog, const ModelSpec& model, const StatePlan& plan)
      : catalog_(catalog),
        model_(model),
        columns_(plan.columns()),
        muon_states_(states_of(columns_, TileKind::momentum)),
        adam_states_(states_of(columns_, TileKind::adam)),
        moment_states_(states_of(columns_, TileKind::moments)),
        tensors_(catalog) {
    for (const TensorEntry& tensor : catalog.tensors)
      has_moments_ =
          has_moments_ || std::ranges::find(moment_states_, tensor.state) != moment_states_.end();
    for (const auto& [of, param, shape] : plan.derived())
      if (of == StatePlan::Derived::Of::moments) moments_.emplace(param, shape);
    for (const GroupEntry& group : catalog.groups)
      trained_.insert(group.params.begin(), group.params.end());
  }

  Result<StoredState> run() {
    StoredState found;
    for (std::uint32_t i = 0; i < model_.params.size(); ++i) {
      EBB_TRY_ASSIGN(const Held held, look_at(i));
      found.held.push_back(held);
    }
    if (!found.held.empty() &&
        std::ranges::all_of(found.held, [](Held held) { return held == Held::nothing; }))
      return nothing_in_common();
    name_lost();
    for (std::size_t way = 0; way < kWays.size(); ++way)
      differing_[way].append_to(found.differences, kWays[way]);
    for (const std::string& recast : recasts_)
      found.differences += (found.differences.empty() ? "" : "; ") + recast;
    constexpr std::size_t kNamedInAnError = 8;
    found.fresh = by(Way::fresh).text(kNamedInAnError);
    found.lost = by(Way::lost).text(kNamedInAnError);
    return found;
  }

 private:
  Named& by(Way way) { return differing_[static_cast<std::size_t>(way)]; }
  bool has(std::string_view name, std::string_view state) const {
    return tensors_.find(name, state) != nullptr;
  }
  const StateNames& states_of_kind(bool muon) const { return muon ? muon_states_ : adam_states_; }
  bool has_all(std::string_view name, const StateNames& states) const {
    return std::ranges::all_of(states, [&](const auto& state) { return has(name, state); });
  }
  bool has_any(std::string_view name) const {
    const auto some = [&](const StateNames& states) {
      return std::ranges::any_of(states, [&](const auto& state) { return has(name, state); });
    };
    return some(muon_states_) || some(adam_states_);
  }

  Result<Held> look_at(std::uint32_t number) {
    const ParamSpec& param = model_.params[number];
    const bool muon = is_muon(model_, number);
    const bool weights = has(param.name, "master");
    const bool untrained = !trained_.contains(param.name) && !has_any(param.name);
    if (!weights && untrained) return by(Way::fresh).add(param.name), Held::nothing;
    if (out_of(model_, number) == Out::weights) {
      const TensorEntry* const master = tensors_.find(param.name, "master");
      EBB_TRY(check_state(master, param, param.shape, "master", catalog_));
      note_halves(*master);
    } else if (weights) {
      by(Way::to_trainer).add(param.name);
    }
    if (untrained) return by(Way::untrained).add(param.name), Held::weights;
    if (!has_all(param.name, states_of_kind(muon)) && has_all(param.name, states_of_kind(!muon)))
      return by(muon ? Way::to_muon : Way::to_adam).add(param.name), Held::weights;
    EBB_TRY(check_states(param, param.shape, states_of_kind(muon)));
    const auto moments = moments_.find(number);
    if (moments == moments_.end()) return Held::all;
    if (!has_moments_) return by(Way::normalised).add(param.name), Held::all;
    EBB_TRY(check_states(param, moments->second, moment_states_));
    return Held::all;
  }

  Result<> check_states(const ParamSpec& param, const Shape& shape, const StateNames& states) {
    for (const std::string& state : states) {
      const TensorEntry* const tensor = tensors_.find(param.name, state);
      EBB_TRY(check_state(tensor, param, shape, state, catalog_));
      const DType ours = dtype_in(columns_, state), was = tensor->stored.value_or(tensor->dtype);
      if (was != ours)
        recasts_.insert(compose("{} is {}, was {}", state, name_of(ours), name_of(was)));
    }
    return {};
  }

  void note_halves(const TensorEntry& master) {
    const DType ours = columns_.dtype(kMaster), was = master.stored.value_or(master.dtype);
    if ((ours == DType::u16) != (was == DType::u16))
      recasts_.insert(compose("master is {}, was {}", name_of(ours), name_of(was)));
  }

  // Whatever the source trained and the model has not.
  void name_lost() {
    std::set<std::string_view> known;
    for (const ParamSpec& param : model_.params) known.insert(param.name);
    for (const TensorEntry& tensor : catalog_.tensors)
      if ((trained_.contains(tensor.name) || has_any(tensor.name)) &&
          known.insert(tensor.name).second)
        by(Way::lost).add(tensor.name);
  }

  Error nothing_in_common() const {
    return {Code::layout,
            compose("the {} checkpoint has no parameter of the model, whose first is {}",
                    catalog_.format, printable(model_.params.front().name)),
            "ckpt-inspect --tensors lists what it has; ckpt-convert --rename gives other names"};
  }

  const Catalog& catalog_;
  const ModelSpec& model_;
  const Columns& columns_;
  const StateNames muon_states_, adam_states_, moment_states_;
  bool has_moments_ = false;                // the catalog
  std::map<std::uint32_t, Shape> moments_;  // of the model, by parameter
  const TensorIndex tensors_;
  std::set<std::string_view> trained_;  // as its groups say
  std::set<std::string> recasts_;       // states that are kept as another dtype than they were
  std::array<Named, kWays.size()> differing_;
};

// Every state in the dtype that the model keeps it as.
formats::ContentView in_our_dtypes(const Checkpoint& checkpoint, const Columns& columns) {
  Catalog content;
  std::vector<formats::MadeOf> made_of;
  for (const TensorEntry& tensor : checkpoint.catalog().tensors) {
    TensorEntry& ours = content.tensors.emplace_back(tensor);
    if (formats::is_floating(tensor.dtype)) ours.dtype = read_as(columns, tensor.state);
    made_of.push_back({static_cast<std::uint32_t>(made_of.size())});
  }
  return {checkpoint, std::move(content), std::move(made_of)};
}

}  // namespace

TensorIndex::TensorIndex(const Catalog& catalog) {
  for (const TensorEntry& tensor : catalog.tensors)
    tensors_.emplace(std::pair<std::string_view, std::string_view>(tensor.name, tensor.state),
                     &tensor);
}

const TensorEntry* TensorIndex::find(std::string_view param, std::string_view state) const {
  const auto found = tensors_.find({param, state});
  if (found != tensors_.end()) return found->second;
  return state == "master" ? find(param, "param") : nullptr;
}

Result<StoredState> find_stored(const Catalog& catalog, const ModelSpec& model,
                                const StatePlan& plan) {
  return Comparison(catalog, model, plan).run();
}

StateSource::StateSource(const Checkpoint& checkpoint, const ModelSpec& model,
                         const StatePlan& plan, std::span<const Held> held,
                         const InitialWeights& initial)
    : checkpoint_(checkpoint),
      model_(model),
      plan_(plan),
      held_(held),
      initial_(initial),
      content_(in_our_dtypes(checkpoint, plan.columns())),
      index_(checkpoint.catalog()) {}

Result<> StateSource::fill(std::span<const formats::native::Segment> segments,
                           std::span<std::byte> tile) {
  std::vector<libswap::Wanted> wanted;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const Segment& segment = segments[i];
    const bool masters = plan_.columns().of_masters(segment.state);
    // Scales are made with their codes, half a list before.
    if (!masters && segment.state >= names_.size()) continue;
    const std::uint32_t param = plan_.param_of(segment);
    const std::string& name = model_.params[param].name;
    const Held held = held_[param];
    if (held == Held::nothing && masters && initial_)
      EBB_TRY(fill_masters(name, segment, tile, masters_from(initial_, param, name)));
    if (held == Held::nothing || (held == Held::weights && !masters)) continue;
    const TensorEntry* const tensor = index_.find(name, names_[masters ? kMaster : segment.state]);
    if (tensor == nullptr) continue;  // find_stored() has told of it
    if (masters && segment.dtype != DType::f32) {
      EBB_TRY(fill_masters(name, segment, tile, [&](FlatRange range, std::span<float> into) {
        return load(*tensor, range, into);
      }));
      continue;
    }
    if (segment.encoding != 0) {
      EBB_TRY(fill_blocks(*tensor, segment, segments[i + segments.size() / 2], tile));
      continue;
    }
    libswap::want_range(number_of(*tensor), tensor->shape, {segment.first, segment.count},
                        tile.subspan(segment.offset, segment.count * bytes_of(segment.dtype)),
                        wanted);
  }
  EBB_TRY(loader_.load(wanted));
  return {};
}

std::uint32_t StateSource::number_of(const TensorEntry& tensor) const {
  return static_cast<std::uint32_t>(&tensor - checkpoint_.catalog().tensors.data());
}

Result<> StateSource::load(const TensorEntry& tensor, FlatRange range, std::span<float> into) {
  std::vector<libswap::Wanted> wanted;
  libswap::want_range(number_of(tensor), tensor.shape, range, std::as_writable_bytes(into), wanted);
  EBB_TRY(loader_.load(wanted));
  return {};
}

// Read as fp32, some blocks at a time.
Result<> StateSource::fill_blocks(const TensorEntry& tensor, const Segment& codes,
                                  const Segment& scales, std::span<std::byte> tile) {
  const std::uint64_t block = formats::native::block_of(codes.encoding);
  EBB_CHECK(codes.first % block == 0 && scales.first == codes.first / block);
  const std::span into(reinterpret_cast<std::int8_t*>(tile.data() + codes.offset), codes.count);
  const std::uint64_t most = std::max<std::uint64_t>(1, kReadAtOnce / block) * block;
  std::vector<float> values;
  for (std::uint64_t first = 0; first < codes.count; first += most) {
    values.resize(std::min(most, codes.count - first));
    EBB_TRY(load(tensor, {codes.first + first, values.size()}, values));
    if (!all_finite(values))
      return Error{Code::unsupported,
                   compose("{} is not finite: int8 cannot hold it", label_of(tensor)),
                   "keep momentum_buffer in fp32 or bf16"};
    formats::to_int8_blocks(values, block, into.subspan(first, values.size()),
                            segment_floats(tile, scales)
                                .subspan(first / block, formats::div_ceil(values.size(), block)));
  }
  return {};
}

Result<> fill_masters(const std::string& param, const Segment& segment, std::span<std::byte> tile,
                      const ReadMasters& read) {
  if (segment.dtype == DType::f32)
    return read({segment.first, segment.count}, segment_floats(tile, segment));
  const auto half = segment.dtype == DType::u16 ? formats::low_half : formats::high_half;
  auto* into = reinterpret_cast<std::uint16_t*>(tile.data() + segment.offset);
  std::vector<float> values;
  for (std::uint64_t first = 0; first < segment.count; first += values.size()) {
    values.resize(std::min(kReadAtOnce, segment.count - first));
    EBB_TRY(read({segment.first + first, values.size()}, values));
    if (!all_finite(values))
      return Error{Code::unsupported,
                   compose("master of {} is not finite: it cannot be kept in halves", param),
                   "keep master in fp32"};
    into = std::ranges::transform(values, into, half).out;
  }
  return {};
}

ReadMasters masters_from(const InitialWeights& initial, std::uint32_t param,
                         const std::string& name) {
  return [&initial, &name, param](FlatRange range, std::span<float> into) -> Result<> {
    initial(param, range, into);
    if (all_finite(into)) return {};
    return Error{Code::usage,
                 compose("the initial weights of {} are not finite among elements {} to {}", name,
                         range.first, range.first + range.count - 1)};
  };
}

std::span<float> segment_floats(std::span<std::byte> tile,
                                const formats::native::Segment& segment) {
  EBB_CHECK(segment.dtype == DType::f32);
  auto* data = reinterpret_cast<float*>(tile.data() + segment.offset);
  return {data, segment.count};
}

}  // namespace ebb::libmuon
