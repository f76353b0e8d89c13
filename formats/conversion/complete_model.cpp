#include "ebb/formats/conversion/complete_model.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "ebb/formats/catalog/composite.h"
#include "ebb/formats/catalog/resume.h"
#include "ebb/formats/conversion/wrappers.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/number_text.h"
#include "ebb/formats/state_dict/groups.h"
#include "ebb/formats/state_dict/names.h"

namespace ebb::formats {
namespace {

using Names = std::set<std::string>;
using Wanted = std::function<bool(const TensorEntry&)>;

// Whether the selection leaves a parameter of which no weight is there to be asked about.
bool leaves(const Wanted& wanted, const std::string& name) {
  if (!wanted) return true;
  TensorEntry weight;
  weight.name = name;
  weight.state = "param";
  return wanted(weight);
}

Names bare_names(const Names& names) {
  Names bare;
  for (const std::string& name : names) bare.insert(bare_name(name));
  return bare;
}

// Flat buffers of many parameters, which no other format knows.
Names bound_names(const Format& from, const Catalog& source) {
  Names bound;
  for (const TensorEntry& tensor : source.tensors)
    if (!from.why_bound(tensor).empty()) bound.insert(tensor.name);
  return bound;
}

constexpr std::string_view kWhatToDo =
    "ckpt-inspect CKPT --tensors lists what it holds; -x NAME leaves a parameter out on purpose, "
    "--to FORMAT without --weights takes everything that is there";

// An optimizer that numbers its parameters has no more of them than the model has.
Result<> check_numbers(const Catalog& source, const std::set<std::string_view>& numbers,
                       const FoundWeights& found) {
  if (numbers.empty()) return {};
  if (numbers.size() > found.names.size())
    return Error{Code::unsupported,
                 compose("the weights are not complete: the optimizers have {}, and there are {}",
                         plural(numbers.size(), "parameter"), plural(found.names.size(), "weight")),
                 std::string(kWhatToDo)};
  bool shaped = false, fits = false;
  for (const TensorEntry& tensor : source.tensors) {
    if (!numbers.contains(tensor.name) || tensor.shape.empty()) continue;
    shaped = true;
    fits = fits || found.shapes.contains(shape_of_whole(tensor));
  }
  if (!shaped || fits) return {};
  return Error{Code::unsupported,
               compose("{} that could be weights have none of the shapes of the {} of the "
                       "optimizers: {} is among them",
                       plural(found.names.size(), "tensor"), plural(numbers.size(), "parameter"),
                       printable(*found.names.begin(), 120)),
               "--model KEY and --optimizer KEY say which part is what"};
}

// Entries of the model's state dict that are no tensors: `_extra_state`, and what else lies below
// a model that has a place of its own.
Names values_of_the_model(const Catalog& source) {
  Names keys;
  for (const ValueEntry& value : source.values) {
    const std::size_t extra = value.key.find(kExtraState);
    if (extra != std::string::npos) {
      keys.insert(value.key.substr(0, extra + kExtraState.size()));
      continue;
    }
    const bool below = std::ranges::any_of(source.parts.models, [&](const StateDictPlace& model) {
      const std::string at = text_of(model);
      return !at.empty() && value.key.starts_with(at + ".");
    });
    if (below) keys.insert(value.key);
  }
  return keys;
}

bool is_true(const Value& value) {
  return value.kind == Value::Kind::boolean && value.integer != 0;
}

}  // namespace

Names optimizer_names(const SourceNames& names, const Catalog& catalog) {
  Names out;
  for (std::size_t i = 0; i < catalog.tensors.size(); ++i)
    if (!is_weight(names.state(i))) out.insert(names.name(i));
  for (const GroupEntry& group : names.groups())
    out.insert(group.params.begin(), group.params.end());
  for (const auto& [name, steps] : catalog.param_steps) out.insert(name);
  return out;
}

Result<> check_complete(const Format& from, const Names& of_optimizers, const Catalog& source,
                        const FoundWeights& found, const Wanted& wanted) {
  const std::set<std::string_view> numbers = mere_numbers(source);
  EBB_TRY(check_numbers(source, numbers, found));
  const Names bound = bound_names(from, source);
  const Names bare = bare_names(found.names);
  std::vector<std::string> missing;
  std::size_t params = 0;
  for (const std::string& name : of_optimizers) {
    if (numbers.contains(name) || bound.contains(name)) continue;
    ++params;
    const bool there = found.names.contains(name) || bare.contains(bare_name(name));
    if (!there && leaves(wanted, name)) missing.push_back(name);
  }
  if (missing.empty()) return {};
  if (missing.size() == params)
    return Error{Code::unsupported,
                 compose("{} that could be weights, {} among them, are none of the {} that the "
                         "optimizers have: {}",
                         plural(found.names.size(), "tensor"), printable(*found.names.begin(), 80),
                         plural(params, "parameter"), some_of(missing)),
                 "--model KEY and --optimizer KEY say which part is what"};
  return Error{Code::unsupported,
               compose("the weights are not complete: there are none of {} of the {} that the "
                       "optimizers have: {}",
                       missing.size(), plural(params, "parameter"), some_of(missing)),
               std::string(kWhatToDo)};
}

std::vector<std::string> reservations(const SourceNames& names, const Catalog& source,
                                      const FoundWeights& found) {
  std::vector<std::string> lines;
  const Names values = values_of_the_model(source);
  if (!values.empty())
    lines.push_back(
        compose("leaves out {} of the model's state dict, which a strict "
                "load_state_dict asks for: {}",
                plural(values.size(), "value"), some_of({values.begin(), values.end()})));
  std::vector<std::string> extra;
  std::ranges::copy_if(found.names, std::back_inserter(extra), is_extra_state);
  if (!extra.empty())
    lines.push_back(compose(
        "takes along {} of modules' own, which {} no parameters: {}; -x '*{}' leaves {} out",
        plural(extra.size(), "tensor"), extra.size() == 1 ? "is" : "are", some_of(extra),
        kExtraState, extra.size() == 1 ? "it" : "them"));
  std::vector<std::string> unread;
  for (const UnreadEntry& entry : source.unread)
    if (entry.state == "master" || (entry.state == "tensor" && !found.keys_are_names))
      unread.push_back(compose("{} ({})", entry.name, entry.state));
  if (!unread.empty())
    lines.push_back(compose("leaves out {} in a form that is not read: {}",
                            plural(unread.size(), "tensor"), some_of(unread)));
  const bool training = std::ranges::any_of(names.groups(), [](const GroupEntry& group) {
    const Value* mode = setting_of(group, "train_mode");
    return mode != nullptr && is_true(*mode);
  });
  if (training)
    lines.emplace_back(
        "a schedule-free optimizer was in train mode: these are the weights at the point y where "
        "gradients are taken, not their average x (optimizer.eval() before the save gives it)");
  return lines;
}

}  // namespace ebb::formats
