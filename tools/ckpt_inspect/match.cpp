#include <algorithm>
#include <map>
#include <set>

#include "ebb/formats/core/float_cast.h"
#include "tools/ckpt_inspect/compare.h"

namespace ebb::tools::inspect {

namespace {

// What a model's state dict holds: formats without 16-bit weights, or without a word for buffers,
// put masters and buffers where the parameter would be.
bool is_weight(const TensorEntry& tensor) {
  return tensor.state == "param" || tensor.state == "buffer" || tensor.state == "master";
}

struct OfName {
  std::vector<const TensorEntry*> left, right;
};

const TensorEntry* take(std::vector<const TensorEntry*>& from, const auto& wanted) {
  const auto found =
      std::ranges::find_if(from, [&](const TensorEntry* tensor) { return wanted(*tensor); });
  if (found == from.end()) return nullptr;
  const TensorEntry* taken = *found;
  from.erase(found);
  return taken;
}

// What a weight that one side alone holds is a copy of: one of the same dtype or a wider one, that
// both sides hold.
const TensorEntry* master_of(const TensorEntry& weight, const std::vector<Match>& matched,
                             bool weight_is_left) {
  for (const Match& match : matched) {
    const TensorEntry* other = weight_is_left ? match.right : match.left;
    if (match.left != nullptr && match.right != nullptr && is_weight(*other) &&
        other->name == weight.name && formats::is_widening(weight.dtype, other->dtype) &&
        other->shape == weight.shape)
      return other;
  }
  return nullptr;
}

void match_name(OfName& of, std::vector<Match>& out) {
  std::vector<const TensorEntry*> rest;
  const auto pair_up = [&](const auto& same) {
    rest.clear();
    for (const TensorEntry* left : of.left) {
      const auto fits = [&](const TensorEntry& right) { return same(*left, right); };
      if (const TensorEntry* right = take(of.right, fits))
        out.push_back({left, right});
      else
        rest.push_back(left);
    }
    of.left = rest;
  };
  // Weights that both sides call alike but keep in another precision come last.
  pair_up([](const TensorEntry& a, const TensorEntry& b) {
    return a.state == b.state && (!is_weight(a) || a.dtype == b.dtype);
  });
  pair_up([](const TensorEntry& a, const TensorEntry& b) {
    return is_weight(a) && is_weight(b) && a.dtype == b.dtype;
  });
  pair_up([](const TensorEntry& a, const TensorEntry& b) {
    return a.state == b.state || (is_weight(a) && is_weight(b));
  });
  const std::vector<Match> paired = out;
  for (const TensorEntry* left : of.left)
    out.push_back({left, nullptr, is_weight(*left) ? master_of(*left, paired, true) : nullptr});
  for (const TensorEntry* right : of.right)
    out.push_back({nullptr, right, is_weight(*right) ? master_of(*right, paired, false) : nullptr});
}

bool names_are_unique(const Side& side) {
  std::set<std::pair<std::string_view, std::string_view>> seen;
  return std::ranges::all_of(side.tensors, [&](const TensorEntry* tensor) {
    return seen.emplace(tensor->name, tensor->state).second;
  });
}

// A tensor that counts the steps of its parameter.
bool is_step(const TensorEntry& tensor) {
  return tensor.state == "step" && formats::checked_volume(tensor.shape).value_or(0) == 1;
}

}  // namespace

std::vector<Match> match_tensors(const Side& left, const Side& right) {
  const bool unique = names_are_unique(left) && names_are_unique(right);
  std::map<std::string, OfName, std::less<>> names;
  const auto of = [&](const TensorEntry& tensor) -> OfName& {
    return names[unique ? tensor.name : label_of(tensor)];
  };
  const auto add = [&](const Side& side, const Side& other, auto list) {
    for (const TensorEntry* tensor : side.tensors)
      if (!is_step(*tensor) || !other.catalog().param_steps.contains(tensor->name))
        (of(*tensor).*list).push_back(tensor);
  };
  add(left, right, &OfName::left);
  add(right, left, &OfName::right);
  std::vector<Match> out;
  for (auto& [name, tensors] : names) {
    std::vector<Match> of_name;
    match_name(tensors, of_name);
    out.insert(out.end(), of_name.begin(), of_name.end());
  }
  return out;
}

}  // namespace ebb::tools::inspect
