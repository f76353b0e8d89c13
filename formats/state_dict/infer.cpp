#include "ebb/formats/state_dict/infer.h"

#include <algorithm>
#include <array>
#include <set>

namespace ebb::formats {
namespace {

using Shapes = std::vector<const Shape*>;

// In order; none when there is not exactly one way. What has no shape has no name.
std::vector<std::string_view> matched(const std::vector<ModelParam>& params, const Shapes& shapes) {
  Shapes known = shapes;
  std::erase(known, nullptr);
  std::vector<std::size_t> first, last;
  std::size_t next = 0;
  for (std::size_t p = 0; p < params.size() && next < known.size(); ++p)
    if (*params[p].shape == *known[next]) first.push_back(p), ++next;
  next = known.size();
  for (std::size_t p = params.size(); p-- > 0 && next > 0;)
    if (*params[p].shape == *known[next - 1]) last.push_back(p), --next;
  std::reverse(last.begin(), last.end());
  if (first.size() != known.size() || first != last) return {};
  std::vector<std::string_view> names;
  next = 0;
  for (const Shape* shape : shapes)
    names.push_back(shape != nullptr ? params[first[next++]].name : std::string_view());
  return names;
}

// Each the only parameter of its shape; what has no shape, none.
std::vector<std::string_view> matched(const std::map<Shape, std::vector<std::string_view>>& params,
                                      const Shapes& shapes) {
  std::vector<std::string_view> names;
  for (const Shape* shape : shapes) {
    if (shape != nullptr && params.at(*shape).size() != 1) return {};
    names.push_back(shape != nullptr ? params.at(*shape).front() : std::string_view());
  }
  return names;
}

// The states that all of them have in a shape of the model, each as its shapes.
std::vector<Shapes> shaped_states(const std::vector<const StateShapes*>& params,
                                  const std::set<Shape>& known) {
  std::vector<Shapes> states;
  for (const auto& [state, first] : *params.front()) {
    if (state == "step") continue;
    Shapes shapes;
    for (const StateShapes* param : params)
      if (const auto found = param->find(state);
          found != param->end() && known.contains(*found->second))
        shapes.push_back(found->second);
    if (shapes.size() == params.size()) states.push_back(std::move(shapes));
  }
  return states;
}

bool alike(const Shapes& a, const Shapes& b) {
  return std::ranges::equal(a, b,
                            [](const Shape* one, const Shape* other) { return *one == *other; });
}

bool are_counters(const Shapes& shapes) {
  return std::ranges::all_of(shapes, [](const Shape* shape) { return volume(*shape) == 1; });
}

// The shapes that most states agree on; empty: none, or several.
Shapes agreed(std::vector<Shapes> states) {
  if (!std::ranges::all_of(states, are_counters)) std::erase_if(states, are_counters);
  Shapes best;
  std::size_t most = 0;
  for (const Shapes& one : states) {
    const auto votes = static_cast<std::size_t>(
        std::ranges::count_if(states, [&](const Shapes& other) { return alike(one, other); }));
    if (votes > most)
      most = votes, best = one;
    else if (votes == most && !alike(one, best))
      best.clear();
  }
  return best;
}

// The model's own, which stays where it is.
const Shape* shape_in(const std::vector<ModelParam>& model, const Shape& shape) {
  return std::ranges::find_if(model, [&](const ModelParam& param) { return *param.shape == shape; })
      ->shape;
}

// The shape without its last extent, and without the one before: what Adafactor keeps of a matrix,
// or of each of a stack. `kept`: as 1, which torch.optim's does.
struct Factors {
  Shape rows, columns;
};
Factors factors_of(const Shape& shape, bool kept) {
  Factors factors{shape, shape};
  if (kept) {
    factors.rows.back() = 1;
    factors.columns[shape.size() - 2] = 1;
    return factors;
  }
  factors.rows.pop_back();
  factors.columns.erase(factors.columns.end() - 2);
  return factors;
}

// The one shape of the model that has two of these states as its factors; nullptr: none, several.
const Shape* factored(const StateShapes& states, const std::set<Shape>& known) {
  const auto has = [&](const Shape& shape) {
    return std::ranges::any_of(states, [&](const auto& state) { return *state.second == shape; });
  };
  const auto two_alike = [&](const Shape& shape) {
    return 2 <=
           std::ranges::count_if(states, [&](const auto& state) { return *state.second == shape; });
  };
  const Shape* found = nullptr;
  for (const Shape& shape : known) {
    if (shape.size() < 2) continue;
    const bool fits = std::ranges::any_of(std::array{false, true}, [&](bool kept) {
      const auto [rows, columns] = factors_of(shape, kept);
      return rows == columns ? two_alike(rows) : has(rows) && has(columns);
    });
    if (!fits) continue;
    if (found != nullptr) return nullptr;
    found = &shape;
  }
  return found;
}

}  // namespace

std::vector<const Shape*> shapes_of_params(const std::vector<const StateShapes*>& group,
                                           const std::vector<ModelParam>& model) {
  std::vector<const Shape*> shapes(group.size(), nullptr);
  std::set<Shape> known;
  for (const ModelParam& param : model) known.insert(*param.shape);
  const auto take_factored = [&](const std::vector<std::size_t>& places) {
    Shapes found;
    for (const std::size_t place : places)
      if (const Shape* shape = factored(*group[place], known)) found.push_back(shape);
    if (found.size() != places.size()) return false;
    for (std::size_t i = 0; i < found.size(); ++i) shapes[places[i]] = shape_in(model, *found[i]);
    return true;
  };
  const auto take = [&](const std::vector<std::size_t>& places) {
    std::vector<const StateShapes*> params;
    for (const std::size_t place : places) params.push_back(group[place]);
    const Shapes found = agreed(shaped_states(params, known));
    for (std::size_t i = 0; i < found.size(); ++i) shapes[places[i]] = found[i];
    return !found.empty();
  };
  std::vector<std::size_t> all;
  std::map<std::vector<std::string_view>, std::vector<std::size_t>> by_states;
  for (std::size_t i = 0; i < group.size(); ++i) {
    if (group[i] == nullptr || group[i]->empty()) continue;
    all.push_back(i);
    std::vector<std::string_view> states;
    for (const auto& [state, shape] : *group[i]) states.push_back(state);
    by_states[std::move(states)].push_back(i);
  }
  if (all.empty() || take_factored(all) || take(all)) return shapes;
  for (const auto& [states, places] : by_states)
    if (!take_factored(places)) take(places);
  return shapes;
}

std::vector<InferredNames> infer_names(const std::vector<ModelParam>& model,
                                       const std::vector<std::vector<const Shape*>>& groups,
                                       ModelOrder order) {
  std::vector<InferredNames> inferred(groups.size());
  std::map<Shape, std::vector<std::string_view>> params;
  for (const ModelParam& param : model) params[*param.shape].push_back(param.name);
  std::map<Shape, std::size_t> numbers;
  for (const Shapes& group : groups)
    for (const Shape* shape : group)
      if (shape != nullptr && ++numbers[*shape] > params[*shape].size()) return inferred;
  std::map<std::string_view, std::size_t> claims;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const Shapes& group = groups[g];
    if (std::ranges::count(group, nullptr) == std::ssize(group)) continue;
    InferredNames& its = inferred[g];
    its = {matched(params, group), NamedBy::shapes};
    if (its.names.empty() && order == ModelOrder::of_the_model)
      its = {matched(model, group), NamedBy::order};
    for (const std::string_view name : its.names) ++claims[name];
  }
  const auto is_shared = [&](std::string_view name) { return !name.empty() && claims[name] > 1; };
  for (InferredNames& its : inferred)
    if (std::ranges::any_of(its.names, is_shared)) its.names.clear();
  return inferred;
}

}  // namespace ebb::formats
