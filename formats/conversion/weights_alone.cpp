#include "ebb/formats/conversion/weights_alone.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "ebb/formats/catalog/key_path.h"
#include "ebb/formats/conversion/source_names.h"
#include "ebb/formats/core/number_text.h"

namespace ebb::formats {

namespace {

using Path = std::vector<PathItem>;

// DeepSpeed's and Megatron's; no other format has its own.
constexpr std::array<std::string_view, 8> kOptimizerKeys = {
    "lr_scheduler", "opt_param_scheduler", "loss_scaler",   "grad_scaler",
    "overflow",     "clip_grad",           "skipped_steps", "ds_config"};

bool names_optimizer(std::string_view word) {
  return word.starts_with("optim") ||
         std::ranges::find(kOptimizerKeys, word) != kOptimizerKeys.end();
}

// What a checkpoint says of its optimizers: the places that have parameter groups below them, as
// torch nests `<optimizer>.param_groups. ...` and `<optimizer>.state. ...`, whatever it is called.
class Optimizers {
 public:
  explicit Optimizers(const Catalog& source) {
    for (const ValueEntry& value : source.values) {
      const auto at = std::ranges::find_if(
          value.path, [](const PathItem& item) { return is_word(item, "param_groups"); });
      if (at != value.path.end()) places_.emplace(value.path.begin(), at);
    }
  }

  bool own(const ValueEntry& value) const {
    if (value.echoed && value.key.find("param_groups") != std::string::npos) return true;
    return value.path.empty() ? names_optimizer(value.key) : own(value.path);
  }
  bool own(const Path& path) const {
    if (path.empty()) return false;
    const auto* first = std::get_if<std::string>(&path.front());
    if (first != nullptr && names_optimizer(*first)) return true;
    return std::ranges::any_of(places_, [&](const Path& place) {
      return path.size() > place.size() && std::equal(place.begin(), place.end(), path.begin()) &&
             (is_word(path[place.size()], "param_groups") || is_word(path[place.size()], "state"));
    });
  }

 private:
  std::set<Path> places_;
};

// The places of tensors and values.
std::vector<const Path*> places_in(const Catalog& catalog) {
  std::vector<const Path*> places;
  for (const TensorEntry& tensor : catalog.tensors) places.push_back(&tensor.path);
  for (const ValueEntry& value : catalog.values) places.push_back(&value.path);
  std::ranges::sort(places, [](const Path* a, const Path* b) { return *a < *b; });
  return places;
}

bool hold_something_in(const std::vector<const Path*>& places, const Path& container) {
  const auto after = std::ranges::lower_bound(
      places, container, {}, [](const Path* place) -> const Path& { return *place; });
  return after != places.end() && (*after)->size() > container.size() &&
         std::equal(container.begin(), container.end(), (*after)->begin());
}

}  // namespace

bool takes_weights_alone(const Format& from, const Catalog& source,
                         const std::function<bool(const TensorEntry&)>& wanted) {
  if (!wanted) return false;
  std::vector<bool> taken;
  for (const TensorEntry& tensor : source.tensors) taken.push_back(wanted(tensor));
  if (std::ranges::find(taken, false) == taken.end()) return false;
  // States in keys that mean nothing to their own format are optimizer states all the same.
  const SourceNames names(from, source);
  bool left = false;
  for (std::size_t i = 0; i < taken.size(); ++i) {
    const bool weight = is_weight(names.state(i));
    if (!weight && taken[i]) return false;
    left = left || !weight;
  }
  return left;
}

std::string leave_optimizer(const Catalog& source, Catalog& content) {
  const std::size_t groups = content.groups.size();
  content.groups.clear();
  content.param_steps.clear();
  const Optimizers optimizers(source);
  const std::size_t values =
      std::erase_if(content.values, [&](const ValueEntry& value) { return optimizers.own(value); });
  if (!content.containers.empty()) {
    const std::vector<const Path*> before = places_in(source), now = places_in(content);
    std::erase_if(content.containers, [&](const ContainerEntry& container) {
      return optimizers.own(container.path) ||
             (hold_something_in(before, container.path) && !hold_something_in(now, container.path));
    });
  }
  std::string left;
  for (const auto& [count, what] : {std::pair(groups, "parameter group"), {values, "value"}})
    if (count > 0) left += (left.empty() ? "" : ", ") + plural(count, what);
  return left.empty() ? "" : "leaves out what only an optimizer reads: " + left;
}

}  // namespace ebb::formats
