#include "ebb/libmuon/step/stored_state.h"

#include <algorithm>
#include <array>
#include <set>

#include "ebb/formats/core/json_text.h"
#include "ebb/libmuon/plan/state_plan.h"

namespace ebb::libmuon {
namespace {

// Without the weights.
constexpr std::array<std::string_view, 1> kMuonStates = {"momentum_buffer"};
constexpr std::array<std::string_view, 2> kAdamStates = {"exp_avg", "exp_avg_sq"};

std::span<const std::string_view> states_of(bool muon) {
  if (muon) return kMuonStates;
  return kAdamStates;
}

Result<> check_state(const TensorEntry* tensor, const ParamSpec& param, std::string_view state,
                     const Catalog& catalog) {
  const std::string what = compose("{} of {}", state, param.name);
  if (tensor == nullptr)
    return Error{Code::incomplete, compose("the {} checkpoint has no {}", catalog.format, what),
                 "ckpt-inspect --tensors lists what it has"};
  if (tensor->shape != param.shape)
    return Error{Code::layout,
                 compose("{} has shape {} in the checkpoint, {} in the model", what,
                         formats::to_string(tensor->shape), formats::to_string(param.shape))};
  if (tensor->dtype != DType::f32 && tensor->dtype != DType::bf16)
    return Error{Code::unsupported, compose("{} is stored as {}; F32 and BF16 can be resumed", what,
                                            name_of(tensor->dtype))};
  return {};
}

// Names as people read them, the first of many.
class Named {
 public:
  void add(std::string_view name) {
    constexpr std::size_t kMostNamed = 100;
    if (++count_ <= kMostNamed) text_ += compose("{}{}", count_ == 1 ? "" : ", ", printable(name));
    more_ = count_ > kMostNamed ? compose(" and {} more", count_ - kMostNamed) : std::string();
  }
  void append_to(std::string& all, std::string_view kind) const {
    if (count_ > 0) all += compose("{}{}: {}{}", all.empty() ? "" : "; ", kind, text_, more_);
  }

 private:
  std::size_t count_ = 0;
  std::string text_, more_;
};

class Comparison {
 public:
  Comparison(const Catalog& catalog, const ModelSpec& model)
      : catalog_(catalog), model_(model), tensors_(catalog) {
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
    new_.append_to(found.differences, "new");
    untrained_.append_to(found.differences, "not trained until now");
    to_muon_.append_to(found.differences, "by AdamW until now, by Muon from zero momentum");
    to_adam_.append_to(found.differences, "by Muon until now, by AdamW from zero moments");
    lost_.append_to(found.differences, "not in the model any more");
    return found;
  }

 private:
  bool has(std::string_view name, std::string_view state) const {
    return tensors_.find(name, state) != nullptr;
  }
  bool has_all(std::string_view name, std::span<const std::string_view> states) const {
    return std::ranges::all_of(states, [&](auto state) { return has(name, state); });
  }
  bool has_any(std::string_view name) const {
    const auto some = [&](std::span<const std::string_view> states) {
      return std::ranges::any_of(states, [&](auto state) { return has(name, state); });
    };
    return some(kMuonStates) || some(kAdamStates);
  }

  Result<Held> look_at(std::uint32_t number) {
    const ParamSpec& param = model_.params[number];
    const bool muon = is_muon(model_, number);
    const bool weights = has(param.name, "master");
    const bool untrained = !trained_.contains(param.name) && !has_any(param.name);
    if (!weights && untrained) return new_.add(param.name), Held::nothing;
    EBB_TRY(check_state(tensors_.find(param.name, "master"), param, "master", catalog_));
    if (untrained) return untrained_.add(param.name), Held::weights;
    if (!has_all(param.name, states_of(muon)) && has_all(param.name, states_of(!muon)))
      return (muon ? to_muon_ : to_adam_).add(param.name), Held::weights;
    for (const std::string_view state : states_of(muon))
      EBB_TRY(check_state(tensors_.find(param.name, state), param, state, catalog_));
    return Held::all;
  }

  // Whatever the source trained and the model has not.
  void name_lost() {
    std::set<std::string_view> known;
    for (const ParamSpec& param : model_.params) known.insert(param.name);
    for (const TensorEntry& tensor : catalog_.tensors)
      if ((trained_.contains(tensor.name) || has_any(tensor.name)) &&
          known.insert(tensor.name).second)
        lost_.add(tensor.name);
  }

  Error nothing_in_common() const {
    return {Code::layout,
            compose("the {} checkpoint has no parameter of the model, whose first is {}",
                    catalog_.format, printable(model_.params.front().name)),
            "ckpt-inspect --tensors lists what it has; ckpt-convert --rename gives other names"};
  }

  const Catalog& catalog_;
  const ModelSpec& model_;
  const TensorIndex tensors_;
  std::set<std::string_view> trained_;  // as its groups say
  Named new_, untrained_, to_muon_, to_adam_, lost_;
};

// Everything that is kept as bf16 reads as fp32.
formats::ContentView widened(const Checkpoint& checkpoint) {
  Catalog content;
  std::vector<formats::MadeOf> made_of;
  for (const TensorEntry& tensor : checkpoint.catalog().tensors) {
    TensorEntry& wide = content.tensors.emplace_back(tensor);
    if (tensor.dtype == DType::bf16) wide.dtype = DType::f32;
    made_of.push_back({static_cast<std::uint32_t>(made_of.size())});
  }
  return {checkpoint, std::move(content), std::move(made_of)};
}

bool is_master(const formats::native::Segment& segment) {
  return segment.state == static_cast<std::uint32_t>(StateId::master);
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

Result<StoredState> find_stored(const Catalog& catalog, const ModelSpec& model) {
  return Comparison(catalog, model).run();
}

StateSource::StateSource(const Checkpoint& checkpoint, const ModelSpec& model,
                         std::span<const Held> held, const InitialWeights& initial)
    : checkpoint_(checkpoint),
      model_(model),
      held_(held),
      initial_(initial),
      content_(widened(checkpoint)),
      index_(checkpoint.catalog()) {}

std::uint32_t StateSource::tensor_of(const formats::native::Segment& segment) const {
  const TensorEntry* tensor = index_.find(model_.params[segment.param].name, names_[segment.state]);
  EBB_CHECK(tensor != nullptr);
  return static_cast<std::uint32_t>(tensor - checkpoint_.catalog().tensors.data());
}

Result<> StateSource::fill(std::span<const formats::native::Segment> segments,
                           std::span<std::byte> tile) {
  std::vector<libswap::Wanted> wanted;
  for (const auto& segment : segments) {
    const Held held = held_[segment.param];
    if (held == Held::nothing && is_master(segment))
      initial_(segment.param, {segment.first, segment.count}, segment_floats(tile, segment));
    if (held == Held::nothing || (held == Held::weights && !is_master(segment))) continue;
    const std::uint32_t tensor = tensor_of(segment);
    libswap::want_range(tensor, checkpoint_.catalog().tensors[tensor].shape,
                        {segment.first, segment.count},
                        std::as_writable_bytes(segment_floats(tile, segment)), wanted);
  }
  EBB_TRY(loader_.load(wanted));
  return {};
}

std::span<float> segment_floats(std::span<std::byte> tile,
                                const formats::native::Segment& segment) {
  auto* data = reinterpret_cast<float*>(tile.data() + segment.offset);
  return {data, segment.count};
}

}  // namespace ebb::libmuon
