#include "ebb/formats/conversion/ties.h"

#include <algorithm>
#include <optional>
#include <variant>

#include "ebb/formats/catalog/key_path.h"
#include "ebb/formats/catalog/resume.h"
#include "ebb/formats/core/compose.h"

namespace ebb::formats {
namespace {

// The weight that a model has: a job rounds the master to its narrower copy.
std::optional<std::size_t> weight_of(const Catalog& content, std::string_view name) {
  std::optional<std::size_t> found;
  for (std::size_t i = 0; i < content.tensors.size(); ++i) {
    const TensorEntry& tensor = content.tensors[i];
    if (tensor.name != name || (tensor.state != "param" && tensor.state != "master")) continue;
    if (!found || tensor.state == "master") found = i;
  }
  return found;
}

// All of them, or, where a state dict is flattened, one.
bool says_ties(const ValueEntry& value) {
  const bool one = value.path.size() == 2 && is_word(value.path.front(), kTiedKey);
  return value.key == kTiedKey || one;
}

}  // namespace

Ties ties_in(const Catalog& catalog) {
  Ties ties;
  const auto add = [&](const std::string& other, const Value& stored) {
    if (stored.kind == Value::Kind::string) ties.emplace_back(other, stored.text);
  };
  for (const ValueEntry& value : catalog.values) {
    if (!says_ties(value)) continue;
    if (value.path.size() == 2)
      if (const auto* other = std::get_if<std::string>(&value.path.back()))
        add(*other, value.value);
    for (const auto& [name, stored] : value.value.entries)
      if (name.kind == Value::Kind::string) add(name.text, stored);
  }
  return ties;
}

std::vector<std::string> settle_ties(const Format& to, Catalog& content,
                                     std::vector<MadeOf>& made_of) {
  if (to.traits().parts != Parts::files) return {};
  std::vector<std::string> added;
  for (const auto& [other, stored] : ties_in(content)) {
    const auto weight = weight_of(content, stored);
    if (to.traits().tied_names == TiedNames::one || !weight || weight_of(content, other)) continue;
    TensorEntry tensor = content.tensors[*weight];
    tensor.name = other;
    tensor.state = "param";
    tensor.key.reset();
    tensor.path.clear();
    content.tensors.push_back(std::move(tensor));
    MadeOf its = made_of[*weight];
    made_of.push_back(std::move(its));
    added.push_back(compose("{} = {}", other, stored));
  }
  std::erase_if(content.values, says_ties);
  if (added.empty()) return {};
  return {compose("stores tied parameters under each name: {}", some_of(added))};
}

}  // namespace ebb::formats
