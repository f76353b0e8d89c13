#include "ebb/formats/state_dict/common_names.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include "ebb/formats/catalog/key_path.h"
#include "ebb/formats/core/name_table.h"
#include "ebb/formats/state_dict/meaning.h"

namespace ebb::formats {
namespace {

using Path = std::vector<PathItem>;

constexpr std::array<std::string_view, 4> kModels = {"model", "state_dict", "model_state_dict",
                                                     "module"};

std::string word_of(const PathItem& item) {
  const auto* text = std::get_if<std::string>(&item);
  return text ? *text : std::to_string(std::get<std::int64_t>(item));
}

std::string joined(Path::const_iterator first, Path::const_iterator last) {
  std::string text;
  for (; first != last; ++first) (text += text.empty() ? "" : ".") += word_of(*first);
  return text;
}

// `<optimizer>.state.<param>.<state>`
struct Slot {
  std::size_t optimizer = 0;  // its number in Optimizers
  const PathItem* param = nullptr;
  std::string state;
};

struct OfParam {
  const Shape* shape = nullptr;     // of its largest state; nullptr: it has none
  std::optional<std::string> name;  // told by its group, or by the shapes
};

// What lies in front of "state" and "param_groups", numbered as it comes.
class Optimizers {
 public:
  struct One {
    Path path;
    std::unordered_map<PathItem, OfParam> params;
  };
  std::size_t number_of(Path::const_iterator first, Path::const_iterator last) {
    const auto is_last_path = [&](const One& one) {
      return std::equal(first, last, one.path.begin(), one.path.end());
    };
    if (last_ < all_.size() && is_last_path(all_[last_])) return last_;
    Path path(first, last);
    const auto [known, fresh] = numbers_.try_emplace(path, all_.size());
    if (fresh) all_.push_back({std::move(path), {}});
    return last_ = known->second;
  }
  One& operator[](std::size_t number) { return all_[number]; }

 private:
  std::vector<One> all_;
  std::map<Path, std::size_t> numbers_;
  std::size_t last_ = 0;  // asked for; the next one is mostly the same
};

// The path below the word that says "a model"; "" when there is no such word.
std::string param_name(const Path& path) {
  const auto at = std::find_if(path.begin(), path.end(), [](const PathItem& item) {
    const auto* text = std::get_if<std::string>(&item);
    return text && std::find(kModels.begin(), kModels.end(), *text) != kModels.end();
  });
  return path.end() - at < 2 ? "" : joined(at + 1, path.end());
}

struct Param {
  std::string_view name;
  const Shape* shape = nullptr;
};

// Which of `params` the shapes are, in order; nullopt when there is not exactly one way.
std::optional<std::vector<std::string_view>> matched(const std::vector<Param>& params,
                                                     const std::vector<const Shape*>& shapes) {
  std::vector<std::size_t> first, last;
  std::size_t next = 0;
  for (std::size_t p = 0; p < params.size() && next < shapes.size(); ++p)
    if (*params[p].shape == *shapes[next]) first.push_back(p), ++next;
  next = shapes.size();
  for (std::size_t p = params.size(); p-- > 0 && next > 0;)
    if (*params[p].shape == *shapes[next - 1]) last.push_back(p), --next;
  std::reverse(last.begin(), last.end());
  if (first.size() != shapes.size() || first != last) return std::nullopt;
  std::vector<std::string_view> names;
  for (const std::size_t p : first) names.push_back(params[p].name);
  return names;
}

class Naming {
 public:
  explicit Naming(const Catalog& catalog) : catalog_(catalog) {}

  CommonNames run() {
    name_params();
    find_slots();
    find_groups();
    for (std::size_t i = 0; i < catalog_.tensors.size(); ++i)
      if (std::optional<Slot>& slot = slots_[i])
        names_.tensors[i] = {name_in(optimizers_[slot->optimizer], *slot->param),
                             std::move(slot->state)};
    take_back_repeats();
    return std::move(names_);
  }

 private:
  // A file that is nothing but tensors by name is a model's.
  void name_params() {
    const bool bare = std::all_of(catalog_.tensors.begin(), catalog_.tensors.end(),
                                  [](const auto& tensor) { return tensor.path.size() == 1; });
    slots_.reserve(catalog_.tensors.size());
    names_.tensors.reserve(catalog_.tensors.size());
    for (const TensorEntry& tensor : catalog_.tensors) {
      slots_.push_back(slot_of(tensor.path));
      auto& [name, state] = names_.tensors.emplace_back();
      if (slots_.back()) continue;
      name = tensor.name, state = tensor.state;
      if (bare) std::tie(name, state) = torch_identity(tensor.name);
      if (bare && state == "tensor") state = "param";
      if (std::string below = param_name(tensor.path); !below.empty())
        name = std::move(below), state = "param";
    }
    std::set<std::tuple<std::uint32_t, std::uint64_t, std::uint64_t>> places;
    for (std::size_t i = 0; i < catalog_.tensors.size(); ++i) {
      const TensorEntry& tensor = catalog_.tensors[i];
      if (names_.tensors[i].second != "param") continue;
      // Tied parameters are one parameter to the optimizer.
      const bool is_new = std::all_of(tensor.chunks.begin(), tensor.chunks.end(), [&](auto& chunk) {
        const std::size_t before = places.size();
        places.emplace_hint(places.end(), chunk.file, chunk.offset, chunk.length);
        return places.size() != before;
      });
      if (is_new) params_.push_back({names_.tensors[i].first, &tensor.shape});
    }
  }

  std::optional<Slot> slot_of(const Path& path) {
    const auto at = std::find_if(path.begin(), path.end(),
                                 [](const PathItem& item) { return is_word(item, "state"); });
    if (path.end() - at < 3) return std::nullopt;
    return Slot{optimizers_.number_of(path.begin(), at), &at[1], joined(at + 2, path.end())};
  }

  // The shape of a parameter is that of its largest state.
  void find_slots() {
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      if (!slots_[i] || slots_[i]->state == "step") continue;
      const Shape& shape = catalog_.tensors[i].shape;
      const Shape*& known = optimizers_[slots_[i]->optimizer].params[*slots_[i]->param].shape;
      if (known == nullptr || volume(shape) > volume(*known)) known = &shape;
    }
  }

  void find_groups() {
    std::vector<std::size_t> optimizers;  // as they come
    std::map<std::size_t, std::vector<const ValueEntry*>> settings;
    for (const ValueEntry& value : catalog_.values) {
      const auto at = std::find_if(value.path.begin(), value.path.end(), [](const PathItem& item) {
        return is_word(item, "param_groups");
      });
      if (at == value.path.end()) continue;
      const std::size_t optimizer = optimizers_.number_of(value.path.begin(), at);
      auto& its = settings[optimizer];
      if (its.empty()) optimizers.push_back(optimizer);
      its.push_back(&value);
    }
    for (const std::size_t optimizer : optimizers)
      for (GroupEntry& group : torch_groups(settings[optimizer]))
        add_group(optimizers_[optimizer], std::move(group));
  }

  void add_group(Optimizers::One& optimizer, GroupEntry group) {
    std::vector<std::string> told;
    const auto listed = std::find_if(group.settings.begin(), group.settings.end(),
                                     [](const auto& pair) { return pair.first == "param_names"; });
    if (listed != group.settings.end()) {
      for (const Value& name : listed->second.items) told.push_back(name.text);
      group.settings.erase(listed);
    } else {
      told = names_by_shape(optimizer, group);
    }
    for (std::size_t i = 0; i < group.params.size(); ++i) {
      const PathItem param = item_of(optimizer, group.params[i]);
      if (told.size() == group.params.size() && !told[i].empty()) {
        std::optional<std::string>& name = optimizer.params[param].name;
        if (!name) name = told[i];
      }
      group.params[i] = name_in(optimizer, param);
    }
    names_.groups.push_back(std::move(group));
  }

  // torch_groups() spells numbers; the state has them as they are.
  static PathItem item_of(const Optimizers::One& optimizer, const std::string& param) {
    const bool digits = !param.empty() && param.size() < 19 &&
                        param.find_first_not_of("0123456789") == std::string::npos;
    if (!digits) return param;
    const auto spelled = optimizer.params.find(param);
    if (spelled != optimizer.params.end() && spelled->second.shape != nullptr) return param;
    return static_cast<std::int64_t>(std::stoll(param));
  }

  std::vector<std::string> names_by_shape(const Optimizers::One& optimizer,
                                          const GroupEntry& group) const {
    std::vector<const Shape*> shapes;
    for (const std::string& param : group.params) {
      const PathItem item = item_of(optimizer, param);
      const auto known = optimizer.params.find(item);
      if (known == optimizer.params.end() || known->second.shape == nullptr ||
          std::holds_alternative<std::string>(item))
        return {};
      shapes.push_back(known->second.shape);
    }
    const auto names = matched(params_, shapes);
    return names ? std::vector<std::string>(names->begin(), names->end())
                 : std::vector<std::string>();
  }

  static std::string name_in(const Optimizers::One& optimizer, const PathItem& param) {
    const auto known = optimizer.params.find(param);
    if (known != optimizer.params.end() && known->second.name) return *known->second.name;
    if (std::holds_alternative<std::string>(param)) return std::get<std::string>(param);
    const std::string prefix = joined(optimizer.path.begin(), optimizer.path.end());
    return prefix + (prefix.empty() ? "" : ".") + word_of(param);
  }

  // What two tensors would be called they are not called.
  void take_back_repeats() {
    std::string all;  // a text for each pair of name and state
    std::vector<std::size_t> ends;
    for (const auto& [name, state] : names_.tensors) {
      all.append(name).append(1, '\0').append(state);
      ends.push_back(all.size());
    }
    NameTable table;
    table.reserve(ends.size());
    std::vector<std::uint32_t> numbers, uses;
    for (std::size_t i = 0, first = 0; i < ends.size(); first = ends[i++]) {
      const auto [number, fresh] =
          table.insert(std::string_view(all).substr(first, ends[i] - first));
      if (fresh) uses.push_back(0);
      ++uses[number];
      numbers.push_back(number);
    }
    for (std::size_t i = 0; i < numbers.size(); ++i)
      if (uses[numbers[i]] > 1)
        names_.tensors[i] = {catalog_.tensors[i].name, catalog_.tensors[i].state};
  }

  const Catalog& catalog_;
  CommonNames names_;
  std::vector<std::optional<Slot>> slots_;  // of each tensor
  std::vector<Param> params_;               // of the model, in its order
  Optimizers optimizers_;
};

}  // namespace

CommonNames torch_common_names(const Catalog& catalog) { return Naming(catalog).run(); }

}  // namespace ebb::formats
