#include "ebb/formats/deepspeed/unsharded.h"

#include <algorithm>
#include <deque>
#include <iterator>

#include "ebb/formats/state_dict/infer.h"
#include "ebb/formats/state_dict/numbers.h"
#include "ebb/formats/torch/unread.h"

namespace ebb::formats::deepspeed {
namespace {

constexpr std::size_t kMaxNumbers = 1 << 20;
constexpr std::size_t kMostStates = 64;  // of one parameter
constexpr std::string_view kWholeMasters = "fp32_groups";
constexpr std::string_view kFlatMasters = "fp32_groups_flat";

bool is_list(const PickleGraph& graph, PickleId id) {
  return id != kNoPickle && graph.is(id, PickleKind::list);
}

std::span<const PickleId> items_of(const PickleGraph& graph, PickleId list) {
  return is_list(graph, list) ? graph.items(list) : std::span<const PickleId>();
}

// As long as nothing says more.
std::string name_of_number(std::size_t number) { return compose("optimizer.{}", number); }

std::string nameless_text(std::size_t count) {
  return compose("{} of the optimizer {}, nothing records {}: ckpt-convert --names FILE says {}",
                 count == 1 ? "1 parameter" : compose("{} parameters", count),
                 count == 1 ? "is a number" : "are numbers",
                 count == 1 ? "its name" : "their names", count == 1 ? "it" : "them");
}

// What the wrapper of half precision keeps of its loss scaler, completed to one that another stage
// can load; none where it does not change.
Value loss_scaler_in(const PickleGraph& graph, PickleId top) {
  const PickleId dynamic = graph.find(top, "dynamic_loss_scale");
  if (dynamic == kNoPickle || !graph.is(dynamic, PickleKind::boolean) ||
      graph.integer(dynamic) == 0)
    return {};
  Value scaler = first_scaler(true);
  for (auto& [key, value] : scaler.entries) {
    const PickleId stored = graph.find(top, key.text);
    if (stored == kNoPickle) continue;
    if (graph.is(stored, PickleKind::integer)) value = Value::of_int(graph.integer(stored));
    if (graph.is(stored, PickleKind::real)) value = Value::of_real(graph.real(stored));
  }
  scaler.add("class", Value::of_string("DynamicLossScaler"));
  return scaler;
}

}  // namespace

bool is_unsharded(const PickleGraph& graph) {
  const PickleId shapes = graph.find(graph.root(), "param_shapes");
  return shapes == kNoPickle || graph.is(shapes, PickleKind::none);
}

Error UnshardedOptimizer::bad(Code code, std::string_view why) const {
  return Error{code, compose("{}: optimizer: {}", file_.where, why)};
}

Result<> UnshardedOptimizer::read(const SourceTree& tree) {
  const PickleId top = graph_.find(graph_.root(), "optimizer");
  if (top == kNoPickle || graph_.is(top, PickleKind::none)) return {};
  const PickleId inner = graph_.find(top, "optimizer_state_dict");
  const PickleId base = inner == kNoPickle ? top : inner;
  const PickleId groups = graph_.find(base, "param_groups");
  if (!is_list(graph_, groups))
    return bad(Code::unsupported, "no list param_groups: its state dict is none of torch.optim's");
  EBB_TRY(count_numbers(groups));
  EBB_TRY(find_masters(top, groups));
  EBB_TRY(masters_.empty() ? name_by_shapes(base, groups) : name_by_elements(tree));
  EBB_TRY_ASSIGN(const Config config, config_of(model_));
  EBB_TRY_ASSIGN(std::vector<ReadGroup> read,
                 param_groups_of(file_.archive, groups, config, numbers_));
  for (ReadGroup& group : read) facts_.groups.push_back(std::move(group.entry));
  facts_.optimizer = optimizer_class(config, facts_.groups);
  facts_.loss_scaler = loss_scaler_in(graph_, top);
  EBB_TRY_ASSIGN(facts_.values, engine_values_of(graph_, top));
  return add_all(base);
}

// Each is a parameter of its own as long as nothing says what it is.
Result<> UnshardedOptimizer::count_numbers(PickleId groups) {
  std::size_t count = 0;
  for (const PickleId group : graph_.items(groups))
    count += items_of(graph_, graph_.find(group, "params")).size();
  if (count > kMaxNumbers)
    return bad(Code::limit, compose("{} parameters; the limit is {}", count, kMaxNumbers));
  for (std::size_t i = 0; i < count; ++i) numbers_.push_back({{name_of_number(i), {}}});
  facts_.steps.assign(count, std::nullopt);
  return {};
}

Result<> UnshardedOptimizer::find_masters(PickleId top, PickleId groups) {
  const PickleId flat = graph_.find(top, kFlatMasters);
  const PickleId list = flat == kNoPickle ? graph_.find(top, kWholeMasters) : flat;
  if (!is_list(graph_, list)) return {};
  kept_ = flat == kNoPickle ? Masters::whole : Masters::flattened;
  std::map<std::int64_t, PickleId> masters;  // by number
  const std::span<const PickleId> of_groups = graph_.items(list);
  for (std::size_t g = 0; g < of_groups.size() && g < graph_.items(groups).size(); ++g) {
    const auto numbers = items_of(graph_, graph_.find(graph_.items(groups)[g], "params"));
    const auto its =
        kept_ == Masters::whole ? items_of(graph_, of_groups[g]) : of_groups.subspan(g, 1);
    if (its.size() != numbers.size())
      return bad(Code::layout, compose("group {} has {} parameters and {} master weights", g,
                                       numbers.size(), its.size()));
    for (std::size_t i = 0; i < its.size(); ++i)
      if (graph_.is(numbers[i], PickleKind::integer))
        masters.emplace(graph_.integer(numbers[i]), its[i]);
  }
  if (masters.size() != numbers_.size() ||
      (!masters.empty() &&
       (masters.begin()->first != 0 || masters.rbegin()->first + 1 != std::ssize(numbers_))))
    return bad(Code::layout,
               compose("{} parameters and {} master weights", numbers_.size(), masters.size()));
  for (const auto& [number, master] : masters) masters_.push_back(master);
  return {};
}

// All or nothing: what has strangers among it is not this model's.
Result<> UnshardedOptimizer::name_by_elements(const SourceTree& tree) {
  EBB_TRY_ASSIGN(ModelCopies copies, ModelCopies::open(checkpoint_.catalog(), tree));
  std::vector<Group> named;
  for (std::size_t i = 0; i < masters_.size(); ++i) {
    EBB_TRY_ASSIGN(const TorchTensor tensor, torch_tensor(graph_, masters_[i]));
    EBB_TRY_ASSIGN(const Flat flat, checkpoint_.add_flat(file_.archive, file_.file, tensor));
    numbers_[i].front().shape = flat.shape;
    EBB_TRY_ASSIGN(auto group, copies.take(flat, kept_));
    if (group) named.push_back(*std::move(group));
  }
  if (named.size() != numbers_.size()) return {};
  numbers_ = std::move(named);
  named_ = copies.took_by_order() ? NamedBy::order : NamedBy::shapes;
  return {};
}

// As of any state dict of torch.optim.
Result<> UnshardedOptimizer::name_by_shapes(PickleId base, PickleId groups) {
  std::vector<ModelParam> model;
  for (const TensorEntry& tensor : checkpoint_.catalog().tensors)
    if (tensor.state == "param") model.push_back({tensor.name, &tensor.shape});
  std::deque<Shape> shapes;
  std::vector<StateShapes> states(numbers_.size());
  for (const auto& [number, dict] : states_by_buffer(graph_, base)) {
    if (number < 0 || number >= std::ssize(numbers_) || !graph_.is(dict, PickleKind::dict))
      continue;
    const std::span<const PickleId> entries = graph_.items(dict);
    for (std::size_t i = 0; i + 1 < entries.size(); i += 2)
      if (graph_.is(entries[i], PickleKind::string) && is_torch_tensor(graph_, entries[i + 1]))
        if (const auto tensor = torch_tensor(graph_, entries[i + 1]))
          states[static_cast<std::size_t>(number)].emplace(graph_.text(entries[i]),
                                                           &shapes.emplace_back(tensor->shape));
  }
  std::vector<std::vector<std::size_t>> numbers;
  std::vector<std::vector<const Shape*>> of_groups;
  for (const PickleId group : graph_.items(groups)) {
    std::vector<const StateShapes*> its;
    numbers.emplace_back();
    for (const PickleId id : items_of(graph_, graph_.find(group, "params")))
      if (graph_.is(id, PickleKind::integer) && graph_.integer(id) >= 0 &&
          graph_.integer(id) < std::ssize(numbers_)) {
        numbers.back().push_back(static_cast<std::size_t>(graph_.integer(id)));
        its.push_back(&states[numbers.back().back()]);
      }
    of_groups.push_back(shapes_of_params(its, model));
  }
  const auto inferred = infer_names(model, of_groups, ModelOrder::of_the_model);
  for (std::size_t g = 0; g < inferred.size(); ++g)
    for (std::size_t i = 0; i < inferred[g].names.size(); ++i) {
      numbers_[numbers[g][i]].front() = {std::string(inferred[g].names[i]), *of_groups[g][i]};
      named_ = std::max(named_, inferred[g].by);
    }
  return {};
}

Result<> UnshardedOptimizer::add_all(PickleId base) {
  const std::size_t before = checkpoint_.catalog().tensors.size();
  for (std::size_t i = 0; i < masters_.size(); ++i) EBB_TRY(add(i, "master", masters_[i]));
  for (const auto& [number, states] : states_by_buffer(graph_, base)) {
    if (number < 0 || number >= std::ssize(numbers_))
      return bad(Code::layout, compose("state of parameter {}, of which no group has", number));
    EBB_TRY(add_states(static_cast<std::size_t>(number), states));
  }
  note_names(checkpoint_.catalog().tensors.size() - before);
  return {};
}

Result<> UnshardedOptimizer::add_states(std::size_t number, PickleId states) {
  if (!graph_.is(states, PickleKind::dict)) return {};
  const std::span<const PickleId> entries = graph_.items(states);
  if (entries.size() > 2 * kMostStates)
    return bad(Code::limit, compose("parameter {} has {} states; the limit is {}", number,
                                    entries.size() / 2, kMostStates));
  for (std::size_t i = 0; i + 1 < entries.size(); i += 2) {
    if (!graph_.is(entries[i], PickleKind::string)) continue;
    const std::string state(graph_.text(entries[i]));
    if (state != "step" && is_torch_tensor(graph_, entries[i + 1])) {
      EBB_TRY(add(number, state, entries[i + 1]));
      continue;
    }
    EBB_TRY_ASSIGN(Value value, value_of(graph_, entries[i + 1], &file_.archive));
    if (const auto steps = state == "step" ? number_of(value) : std::nullopt) {
      facts_.steps[number] = steps;
      continue;
    }
    facts_.values.push_back({compose("optimizer.state.{}.{}", number, state),
                             {"optimizer", "state", static_cast<std::int64_t>(number), state},
                             std::move(value)});
  }
  return {};
}

// States of a flat buffer are cut like it; others may have any shape.
Result<> UnshardedOptimizer::add(std::size_t number, const std::string& state, PickleId tensor) {
  const Group& group = numbers_[number];
  if (const auto form = unread_form(graph_, tensor)) {
    for (const Param& param : group)
      checkpoint_.building().unread.push_back({compose("optimizer.state.{}.{}", number, state),
                                               {},
                                               param.name,
                                               state,
                                               form->what,
                                               form->hint});
    return {};
  }
  EBB_TRY_ASSIGN(const TorchTensor what, torch_tensor(graph_, tensor));
  EBB_TRY_ASSIGN(const Flat flat, checkpoint_.add_flat(file_.archive, file_.file, what));
  const std::string where = compose("{}: parameter {}", file_.where, number);
  if (kept_ == Masters::whole || group.size() == 1)
    return partitions_.add_whole(group.front().name, state,
                                 kept_ == Masters::whole ? flat.shape : group.front().shape, flat,
                                 where);
  return partitions_.add(group, cut_flat(group, {0, elems_of(group)}, 0), state, Rank{0}, flat,
                         where);
}

void UnshardedOptimizer::note_names(std::size_t states) {
  Catalog& catalog = checkpoint_.building();
  if (named_ == NamedBy::shapes && !masters_.empty())
    catalog.notes.push_back(
        compose("{}{} states follow from the master weights, which are the model's when rounded: "
                "nothing records them",
                kInferredNames, states));
  InferredCount count;
  if (named_ == NamedBy::order) say_by_order(catalog, count.by_order = states);
  if (named_ == NamedBy::shapes && masters_.empty()) count.by_shapes = states;
  std::ranges::move(count.lines(), std::back_inserter(catalog.notes));
  StateDictOptimizer optimizer{{{"optimizer"}, {}}, {}, {}, named_};
  std::size_t nameless = 0;
  for (std::size_t i = 0; i < numbers_.size(); ++i)
    for (const Param& param : numbers_[i]) {
      optimizer.params.push_back(param.name);
      nameless += param.name == name_of_number(i) ? 1 : 0;
    }
  if (nameless > 0) catalog.notes.push_back(nameless_text(nameless));
  catalog.parts.optimizers.push_back(std::move(optimizer));
}

}  // namespace ebb::formats::deepspeed
