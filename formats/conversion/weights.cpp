#include "ebb/formats/conversion/weights.h"
#include "ebb/formats/catalog/adapter.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "ebb/formats/catalog/adapter.h"
#include "ebb/formats/catalog/composite.h"
#include "ebb/formats/catalog/key_path.h"
#include "ebb/formats/catalog/resume.h"
#include "ebb/formats/conversion/complete_model.h"
#include "ebb/formats/conversion/source_names.h"
#include "ebb/formats/conversion/ties.h"
#include "ebb/formats/core/compose.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/number_text.h"

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

// The copies of each parameter, the most exact one first. Tensors under mere keys are a model only
// where nothing else is one.
using Copies = std::map<std::string, std::vector<Copy>>;
Copies copies_in(const SourceNames& names, const Catalog& source) {
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

void add(Weights& weights, const Catalog& source, std::string name, std::uint32_t tensor) {
  const TensorEntry& copied = source.tensors[tensor];
  TensorEntry& weight = weights.tensors.emplace_back();
  weight.name = std::move(name);
  weight.state = "param";
  weight.dtype = copied.dtype;
  weight.shape = copied.shape;
  weights.made_of.push_back({tensor});
}

// Names that are kept once for all of a storage.
void restore_ties(const Catalog& source, const Copies& copies, Weights& weights) {
  std::map<std::string, std::uint32_t> taken;
  for (std::size_t i = 0; i < weights.tensors.size(); ++i)
    taken.emplace(weights.tensors[i].name, weights.made_of[i].source_tensor);
  std::vector<std::string> restored;
  for (const auto& [other, stored] : ties_in(source)) {
    const auto weight = taken.find(stored);
    if (weight == taken.end() || copies.contains(other)) continue;
    add(weights, source, other, weight->second);
    restored.push_back(compose("{} = {}", other, stored));
  }
  if (!restored.empty())
    weights.changes.push_back(
        compose("stores tied parameters under each name: {}", some_of(restored)));
}

FoundWeights found_in(const Catalog& source, const Copies& copies, const Weights& weights) {
  FoundWeights found;
  for (const auto& [name, of_one] : copies) {
    found.names.insert(name);
    found.shapes.insert(source.tensors[of_one.front().tensor].shape);
  }
  for (const TensorEntry& weight : weights.tensors) found.names.insert(weight.name);  // tied ones
  found.keys_are_names = are_unnamed(copies);
  return found;
}

// A part is no model, whatever lies in it.
Result<> check_whole(const Catalog& source) {
  if (!source.part_of) return {};
  const std::uint32_t parts = source.part_of->parts;
  return Error{Code::unsupported,
               compose("this is one part{} of a save, which holds no complete weights: {}",
                       parts == 0 ? "" : compose(" of {}", parts), printable(source.part_of->why)),
               "name the folder of the save, or convert this part as it is: --to FORMAT without "
               "--weights"};
}

// All parameters of a module in one row are no weights of a model.
Result<> check_not_flattened(const Weights& weights) {
  for (const TensorEntry& weight : weights.tensors)
    if (is_flattened_key(weight.name) && weight.shape.size() == 1)
      return Error{
          Code::unsupported,
          compose("'{}' holds the parameters of a module that FSDP has flattened: LOCAL_STATE_DICT "
                  "records neither their names nor their shapes",
                  printable(weight.name)),
          "save it as SHARDED_STATE_DICT or FULL_STATE_DICT; --to FORMAT without --weights "
          "converts it as it is"};
  return {};
}

// A class of its own is nothing that a model's load_state_dict or from_pretrained makes anew.
Result<> check_plain(const Catalog& source, const Weights& weights) {
  for (const MadeOf& made : weights.made_of) {
    const TensorEntry& tensor = source.tensors[made.source_tensor];
    if (tensor.part_of == nullptr) continue;
    return Error{
        Code::unsupported,
        compose("the weight '{}' is of {}: its parts are no weights of a model",
                printable(whole_of(tensor).name), class_text(tensor.part_of->whole->type)),
        "--dequantize makes plain weights of it; --to FORMAT without --weights takes it as "
        "it is; -x leaves it out"};
  }
  return {};
}

// What is under no parameter's key.
std::string left_unnamed(const SourceNames& names, const Catalog& source, const Copies& copies) {
  std::vector<std::string> unnamed;
  for (std::uint32_t i = 0; i < source.tensors.size(); ++i)
    if (names.state(i) == "tensor" && !copies.contains(names.name(i)))
      unnamed.push_back(names.name(i));
  if (unnamed.empty()) return {};
  return compose("leaves out {} under keys that are no parameter's: {}",
                 plural(unnamed.size(), "tensor"), some_of(unnamed));
}

// Takes the best copy of each that is wanted; says which are not.
std::string take_wanted(const Catalog& source, const Copies& copies, const Wanted& wanted,
                        Weights& weights) {
  std::vector<std::string> left;
  for (const auto& [name, of_one] : copies) {
    const std::uint32_t best = of_one.front().tensor;
    if (wanted && !wanted(source.tensors[best]))
      left.push_back(name);
    else
      add(weights, source, name, best);
  }
  if (left.empty()) return {};
  return compose("leaves out {} of {} parameters and buffers: {}", left.size(), copies.size(),
                 some_of(left));
}

}  // namespace

Result<Weights> weights_of(const Format& from, const Catalog& source, const Wanted& wanted) {
  EBB_TRY(check_whole(source));
  const SourceNames names(from, source);
  const Copies copies = copies_in(names, source);
  if (copies.empty())
    return Error{
        Code::unsupported, "no weights of a model are recognised in it",
        "ckpt-inspect CKPT --tensors lists what it holds; without --weights all of it goes"};
  if (are_unnamed(copies) && !source.parts.unclear.empty())
    return Error{Code::unsupported, source.parts.unclear.back(),
                 "--model KEY and --optimizer KEY say which part is what"};
  Weights weights;
  weights.changes.push_back(take_wanted(source, copies, wanted, weights));
  if (weights.tensors.empty())
    return Error{Code::usage,
                 compose("none of the {} parameters and buffers matches", copies.size()),
                 "ckpt-inspect CKPT --tensors lists names and keys"};
  EBB_TRY(check_not_flattened(weights));
  EBB_TRY(check_plain(source, weights));
  restore_ties(source, copies, weights);
  const FoundWeights found = found_in(source, copies, weights);
  weights.names = {found.names, optimizer_names(names, source)};
  EBB_TRY(check_complete(from, weights.names.of_optimizers, source, found, wanted));
  weights.changes.push_back(left_unnamed(names, source, copies));
  if (is_adapter(source))
    weights.changes.emplace_back(
        "has an adapter's weights alone, as PEFT names them: the model that it belongs to is not "
        "in this checkpoint");
  for (std::string& line : reservations(names, source, found))
    weights.changes.push_back(std::move(line));
  std::erase(weights.changes, "");
  return weights;
}

std::string left_out_parameters(const Format& from, const Catalog& source, const Wanted& wanted) {
  if (!wanted) return {};
  const SourceNames names(from, source);
  std::vector<std::string> left;
  const Copies copies = copies_in(names, source);
  for (const auto& [name, of_one] : copies) {
    const bool taken = std::ranges::any_of(
        of_one, [&](const Copy& copy) { return wanted(source.tensors[copy.tensor]); });
    if (!taken) left.push_back(name);
  }
  if (left.empty() || are_unnamed(copies)) return {};
  return compose("leaves out the weights of {} of {} parameters and buffers: {}", left.size(),
                 copies.size(), some_of(left));
}

}  // namespace ebb::formats
