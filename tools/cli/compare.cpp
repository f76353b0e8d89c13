#include "tools/cli/compare.h"

#include <map>
#include <set>

#include "formats/core/json_text.h"
#include "libswap/transfer/digest.h"
#include "tools/cli/selection.h"

namespace tools {

using formats::Result;
using formats::TensorEntry;

namespace {

enum class Match : std::uint8_t { name_and_state, key };
using ByIdentity = std::map<std::string, const TensorEntry*>;

// What a model's state dict calls a tensor: formats without 16-bit weights, or without a word for
// buffers, put masters and buffers where the parameter would be.
std::vector<std::string> states_of(const Side& side) {
  std::set<std::string_view> with_param;
  for (const TensorEntry* tensor : side.tensors)
    if (tensor->state == "param" || tensor->state == "buffer") with_param.insert(tensor->name);
  std::vector<std::string> states;
  for (const TensorEntry* tensor : side.tensors) {
    const bool model = tensor->state == "buffer" ||
                       (tensor->state == "master" && !with_param.contains(tensor->name));
    states.push_back(model ? "param" : tensor->state);
  }
  return states;
}

bool names_are_unique(const Side& side) {
  const std::vector<std::string> states = states_of(side);
  std::set<std::pair<std::string_view, std::string_view>> seen;
  for (std::size_t i = 0; i < states.size(); ++i)
    if (!seen.emplace(side.tensors[i]->name, states[i]).second) return false;
  return true;
}

ByIdentity by_identity(const Side& side, Match match) {
  const std::vector<std::string> states = states_of(side);
  ByIdentity out;
  for (std::size_t i = 0; i < states.size(); ++i) {
    const TensorEntry& tensor = *side.tensors[i];
    std::string name = label_of(tensor);
    if (match == Match::name_and_state)
      name = formats::printable(tensor.name) + " (" + formats::printable(states[i]) + ")";
    out.emplace(std::move(name), &tensor);
  }
  return out;
}

Result<std::string> difference_of(const Side& left, const TensorEntry& a, const Side& right,
                                  const TensorEntry& b) {
  if (a.dtype != b.dtype)
    return std::string(name_of(a.dtype)) + " against " + std::string(name_of(b.dtype));
  if (a.shape != b.shape)
    return formats::to_string(a.shape) + " against " + formats::to_string(b.shape);
  TRY_ASSIGN(const std::string x, libswap::sha256_of(left.checkpoint, a));
  TRY_ASSIGN(const std::string y, libswap::sha256_of(right.checkpoint, b));
  return x == y ? std::string()
                : "bits differ (sha256 " + x.substr(0, 12) + " against " + y.substr(0, 12) + ")";
}

void compare_values(const formats::Catalog& left, const formats::Catalog& right,
                    Comparison& comparison) {
  std::map<std::string_view, const formats::Value*> others;
  for (const formats::ValueEntry& value : right.values) others[value.key] = &value.value;
  for (const formats::ValueEntry& value : left.values) {
    const auto other = others.find(value.key);
    if (other == others.end()) {
      ++comparison.values_only_left;
      continue;
    }
    ++comparison.values_in_both;
    const std::string a = formats::to_json(value.value), b = formats::to_json(*other->second);
    if (a != b)
      comparison.differences.push_back("value " + formats::printable(value.key) + ": " +
                                       formats::printable(a, 60) + " against " +
                                       formats::printable(b, 60));
  }
  comparison.values_only_right = right.values.size() - comparison.values_in_both;
}

}  // namespace

Result<Comparison> compare(const Side& left, const Side& right, const Step& step) {
  const bool unique = names_are_unique(left) && names_are_unique(right);
  const Match match = unique ? Match::name_and_state : Match::key;
  const ByIdentity rights = by_identity(right, match);
  Comparison comparison;
  for (const auto& [identity, tensor] : by_identity(left, match)) {
    const auto other = rights.find(identity);
    if (other == rights.end()) {
      comparison.differences.push_back(identity + ": only on the left");
      continue;
    }
    TRY(step(*tensor));
    TRY_ASSIGN(const std::string difference, difference_of(left, *tensor, right, *other->second));
    if (difference.empty()) {
      ++comparison.equal_tensors;
      comparison.equal_bytes += bytes_of(*tensor);
    } else {
      comparison.differences.push_back(identity + ": " + difference);
    }
  }
  const ByIdentity lefts = by_identity(left, match);
  for (const auto& [identity, tensor] : rights)
    if (!lefts.contains(identity))
      comparison.differences.push_back(identity + ": only on the right");
  compare_values(left.checkpoint.catalog(), right.checkpoint.catalog(), comparison);
  return comparison;
}

}  // namespace tools
