#include "ebb/formats/conversion/weights.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include "ebb/formats/core/compose.h"
#include "ebb/formats/core/json_text.h"

namespace ebb::formats {
namespace {

// Where a tensor's elements are the model's: the more exact, the higher.
enum class Exactness : std::uint8_t { none, unnamed, model, master };

Exactness exactness_of(std::string_view state) {
  if (state == "master") return Exactness::master;
  if (state == "param" || state == "buffer") return Exactness::model;
  return state == "tensor" ? Exactness::unnamed : Exactness::none;
}

struct Copy {
  std::uint32_t tensor = 0;
  Exactness exactness = Exactness::none;
};

// Every tensor's name and state where its format's own conventions mean nothing.
class Names {
 public:
  Names(const Format& from, const Catalog& source)
      : source_(source), common_(from.common_names(source)) {}

  const std::string& name(std::uint32_t i) const {
    return common_ ? common_->tensors[i].first : source_.tensors[i].name;
  }
  const std::string& state(std::uint32_t i) const {
    return common_ ? common_->tensors[i].second : source_.tensors[i].state;
  }

 private:
  const Catalog& source_;
  std::optional<CommonNames> common_;
};

// The copies of each parameter, the most exact one first. Tensors under mere keys are a model only
// where nothing else is one.
using Copies = std::map<std::string, std::vector<Copy>>;
Copies copies_in(const Names& names, const Catalog& source) {
  const auto exactness = [&](std::uint32_t i) { return exactness_of(names.state(i)); };
  Exactness least = Exactness::unnamed;
  for (std::uint32_t i = 0; i < source.tensors.size(); ++i)
    if (exactness(i) >= Exactness::model) least = Exactness::model;
  Copies copies;
  for (std::uint32_t i = 0; i < source.tensors.size(); ++i)
    if (exactness(i) >= least) copies[names.name(i)].push_back({i, exactness(i)});
  for (auto& [name, of_one] : copies) {
    // A master of another shape is of another cut, not of the parameter.
    const auto model = std::ranges::find(of_one, Exactness::model, &Copy::exactness);
    const Shape* shape = model == of_one.end() ? nullptr : &source.tensors[model->tensor].shape;
    const auto rank = [&](const Copy& copy) {
      const TensorEntry& tensor = source.tensors[copy.tensor];
      return std::tuple(shape == nullptr || tensor.shape == *shape, bits_of(tensor.dtype),
                        copy.exactness);
    };
    std::ranges::stable_sort(of_one, std::greater(), rank);
  }
  return copies;
}

// Nothing that is known to be a model's. REQUIRES: there are any.
bool are_unnamed(const Copies& copies) {
  return copies.begin()->second.front().exactness == Exactness::unnamed;
}

std::string listed(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 4;
  std::string out;
  for (std::size_t i = 0; i < std::min(names.size(), kShown); ++i)
    out.append(i == 0 ? "" : ", ").append(printable(names[i], 80));
  return names.size() <= kShown ? out : compose("{} and {} more", out, names.size() - kShown);
}

std::string tensors_text(std::size_t count) {
  return compose("{} tensor{}", count, count == 1 ? "" : "s");
}

void add(Weights& weights, const Catalog& source, std::string name, std::uint32_t tensor) {
  const TensorEntry& copied = source.tensors[tensor];
  TensorEntry& weight = weights.tensors.emplace_back();
  weight.name = std::move(name);
  weight.state = "param";
  weight.dtype = copied.dtype;
  weight.shape = copied.shape;
  weights.made_of.push_back({tensor});
}

// Names that DeepSpeed keeps once for all of a storage.
void restore_ties(const Catalog& source, const Copies& copies, Weights& weights) {
  std::map<std::string, std::uint32_t> taken;
  for (std::size_t i = 0; i < weights.tensors.size(); ++i)
    taken.emplace(weights.tensors[i].name, weights.made_of[i].source_tensor);
  std::vector<std::string> restored;
  for (const ValueEntry& value : source.values) {
    if (value.key != "tied") continue;
    for (const auto& [alias, owner] : value.value.entries) {
      const auto weight = taken.find(owner.text);
      if (weight == taken.end() || copies.contains(alias.text)) continue;
      add(weights, source, alias.text, weight->second);
      restored.push_back(compose("{} = {}", alias.text, owner.text));
    }
  }
  if (!restored.empty())
    weights.changes.push_back(
        compose("stores tied parameters under each name: {}", listed(restored)));
}

}  // namespace

Result<Weights> weights_of(const Format& from, const Catalog& source, const Wanted& wanted) {
  const Names names(from, source);
  const Copies copies = copies_in(names, source);
  if (copies.empty())
    return Error{
        Code::unsupported, "no weights of a model are recognised in it",
        "ckpt-inspect CKPT --tensors lists what it holds; without --weights all of it goes"};
  if (are_unnamed(copies) && !source.parts.unclear.empty())
    return Error{Code::unsupported, source.parts.unclear.back(),
                 "--model KEY and --optimizer KEY say which part is what"};
  Weights weights;
  std::vector<std::string> left;
  for (const auto& [name, of_one] : copies) {
    const std::uint32_t best = of_one.front().tensor;
    if (wanted && !wanted(source.tensors[best]))
      left.push_back(name);
    else
      add(weights, source, name, best);
  }
  if (weights.tensors.empty())
    return Error{Code::usage,
                 compose("none of the {} parameters and buffers matches", copies.size()),
                 "ckpt-inspect CKPT --tensors lists names and keys"};
  if (!left.empty())
    weights.changes.push_back(compose("leaves out {} of {} parameters and buffers: {}", left.size(),
                                      copies.size(), listed(left)));
  restore_ties(source, copies, weights);
  std::vector<std::string> unnamed;
  for (std::uint32_t i = 0; i < source.tensors.size(); ++i)
    if (names.state(i) == "tensor" && !copies.contains(names.name(i)))
      unnamed.push_back(names.name(i));
  if (!unnamed.empty())
    weights.changes.push_back(compose("leaves out {} under keys that are no parameter's: {}",
                                      tensors_text(unnamed.size()), listed(unnamed)));
  return weights;
}

std::string left_out_parameters(const Format& from, const Catalog& source, const Wanted& wanted) {
  if (!wanted) return {};
  const Names names(from, source);
  std::vector<std::string> left;
  const Copies copies = copies_in(names, source);
  for (const auto& [name, of_one] : copies) {
    const bool taken = std::ranges::any_of(
        of_one, [&](const Copy& copy) { return wanted(source.tensors[copy.tensor]); });
    if (!taken) left.push_back(name);
  }
  if (left.empty() || are_unnamed(copies)) return {};
  return compose("leaves out the weights of {} of {} parameters and buffers: {}", left.size(),
                 copies.size(), listed(left));
}

}  // namespace ebb::formats
