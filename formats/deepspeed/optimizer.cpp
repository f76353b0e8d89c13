#include "ebb/formats/deepspeed/optimizer.h"

#include <algorithm>
#include <set>

#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/units.h"
#include "ebb/formats/deepspeed/names.h"
#include "ebb/formats/state_dict/plain_numbers.h"

namespace ebb::formats::deepspeed {
namespace {

constexpr std::size_t kMaxStates = 16;  // of one flat buffer; each names all its parameters
constexpr std::string_view kStage3Masters = "fp32_flat_groups";
constexpr std::string_view kStage12Masters = "single_partition_of_fp32_groups";

// The `ds_id` attribute that stage 3 sets on its flat buffers: the name of their swap files.
std::string_view swap_id(const PickleGraph& graph, PickleId tensor) {
  if (!graph.is_object_of(tensor, "torch._tensor._rebuild_from_type_v2")) return {};
  const std::span<const PickleId> args = graph.items(graph.args(tensor));
  if (args.size() < 4) return {};
  PickleId state = args[3];
  if (graph.is(state, PickleKind::tuple) && !graph.items(state).empty())
    state = graph.items(state)[0];
  const PickleId id = graph.find(state, "ds_id");
  return id != kNoPickle && graph.is(id, PickleKind::string) ? graph.text(id) : std::string_view{};
}

}  // namespace

std::string_view zero12_class(PickleId stage) {
  return stage == kNoPickle ? "BF16_Optimizer" : "DeepSpeedZeroOptimizer";
}

// param_groups[i]["params"] lists the flat buffers that belong to the group.
Result<std::vector<ReadGroup>> param_groups_of(const TorchArchive& archive, PickleId list,
                                               const Config& config,
                                               const std::vector<Group>& shapes) {
  const PickleGraph& graph = archive.graph();
  if (list == kNoPickle || !graph.is(list, PickleKind::list))
    return Error{Code::corrupt, graph.where() + ": no list param_groups"};
  std::vector<ReadGroup> groups;
  std::set<std::int64_t> taken;
  for (const PickleId item : graph.items(list)) {
    EBB_TRY_ASSIGN(const Value value, value_of(graph, item, &archive));
    ReadGroup& group = groups.emplace_back();
    for (const auto& [key, setting] : value.entries)
      if (key.text != "params")
        group.entry.settings.emplace_back(key.text, with_plain_numbers(setting));
    group.entry.optimizer = group_optimizer(config, group.entry);
    const Value* params = value.find("params");
    for (const Value& buffer : params == nullptr ? std::vector<Value>{} : params->items) {
      if (buffer.kind != Value::Kind::integer || buffer.integer < 0 ||
          static_cast<std::uint64_t>(buffer.integer) >= shapes.size())
        return Error{Code::layout,
                     graph.where() +
                         ": a parameter group refers to a flat buffer that param_shapes does not "
                         "describe"};
      if (!taken.insert(buffer.integer).second)
        return Error{Code::corrupt, compose("{}: flat buffer {} is in two parameter groups",
                                            graph.where(), buffer.integer)};
      group.buffers.push_back(static_cast<std::size_t>(buffer.integer));
      for (const Param& param : shapes[group.buffers.back()])
        group.entry.params.push_back(param.name);
    }
  }
  return groups;
}

std::map<std::int64_t, PickleId> states_by_buffer(const PickleGraph& graph, PickleId base) {
  std::map<std::int64_t, PickleId> states;
  const PickleId dict = graph.find(base, "state");
  if (dict == kNoPickle || !graph.is(dict, PickleKind::dict)) return states;
  const std::span<const PickleId> entries = graph.items(dict);
  for (std::size_t i = 0; i + 1 < entries.size(); i += 2)
    if (graph.is(entries[i], PickleKind::integer))
      states.emplace(graph.integer(entries[i]), entries[i + 1]);
  return states;
}

Result<std::vector<ValueEntry>> engine_values_of(const PickleGraph& graph, PickleId dict) {
  std::vector<ValueEntry> values;
  for (const std::string_view name : {"overflow", "clip_grad"}) {
    const PickleId id = graph.find(dict, name);
    if (id == kNoPickle) continue;
    EBB_TRY_ASSIGN(Value value, value_of(graph, id, nullptr));
    values.push_back({std::string(name), {std::string(name)}, std::move(value)});
  }
  return values;
}

Result<std::vector<std::uint32_t>> partition_counts(const PickleGraph& graph) {
  const PickleId top = graph.find(graph.root(), "optimizer_state_dict");
  const PickleId count = graph.find(top, "partition_count");
  // Stages 1 and 2 keep one number a group.
  const bool list = count != kNoPickle && graph.is(count, PickleKind::list);
  const std::span<const PickleId> all =
      list ? graph.items(count) : std::span<const PickleId>(&count, 1);
  std::vector<std::uint32_t> counts;
  for (const PickleId item : all) {
    if (item == kNoPickle || !graph.is(item, PickleKind::integer) || graph.integer(item) < 1 ||
        graph.integer(item) > (1 << 20))
      return Error{Code::corrupt, graph.where() + ": partition_count is no number of ranks"};
    counts.push_back(static_cast<std::uint32_t>(graph.integer(item)));
  }
  if (counts.empty())
    return Error{Code::corrupt, graph.where() + ": partition_count is no number of ranks"};
  if (std::ranges::count(counts, counts.front()) == std::ssize(counts)) counts.resize(1);
  return counts;
}

bool is_stage3(const PickleGraph& graph) {
  return graph.find(graph.find(graph.root(), "optimizer_state_dict"), kStage3Masters) != kNoPickle;
}

Error OptimizerReader::bad(Code code, std::string_view why) const {
  return Error{code, compose("{}: {}", file_.where, why)};
}

std::string OptimizerReader::where(std::size_t number) const {
  return compose("{}: group {}", file_.where, number);
}

Result<> OptimizerReader::read() {
  top_ = graph_.find(graph_.root(), "optimizer_state_dict");
  if (top_ == kNoPickle) return bad(Code::corrupt, "no optimizer_state_dict");
  EBB_TRY(check_counts());
  EBB_TRY_ASSIGN(config_, config_of(graph_));
  const bool stage3 = is_stage3(graph_);
  const PickleId stage = graph_.find(top_, "zero_stage");
  facts_.stage = stage3 ? 3 : stage_number(graph_, stage);
  facts_.zero_optimizer = stage3 ? "DeepSpeedZeroOptimizer_Stage3" : zero12_class(stage);
  if (stage3) EBB_TRY(refuse_experts());
  const PickleId base = graph_.find(top_, stage3 ? "optimizer_state_dict" : "base_optimizer_state");
  const std::size_t buffers = state_.groups.size();
  whole_momentum_.assign(buffers, 0);
  facts_.steps.assign(buffers, std::nullopt);
  if (base != kNoPickle && graph_.is(base, PickleKind::dict)) {
    EBB_TRY(read_groups(base));
  } else if (base != kNoPickle && graph_.is(base, PickleKind::list) && !stage3) {
    EBB_TRY(name_groups_of_elastic(graph_.items(base).size()));
  } else {
    return bad(Code::corrupt, "no optimizer state");
  }
  facts_.optimizer = optimizer_class(config_, facts_.groups);
  EBB_TRY_ASSIGN(facts_.loss_scaler, loss_scaler_of(graph_, graph_.find(top_, "loss_scaler")));
  EBB_TRY_ASSIGN(facts_.values, engine_values_of(graph_, top_));
  return read_partitions(stage3 ? kStage3Masters : kStage12Masters, base);
}

Result<> OptimizerReader::check_counts() const {
  EBB_TRY_ASSIGN(const std::vector<std::uint32_t> counts, partition_counts(graph_));
  if (counts.size() > 1 && counts.size() != state_.groups.size())
    return bad(Code::layout, compose("partition_count has {} groups, param_shapes describes {}",
                                     counts.size(), state_.groups.size()));
  for (std::size_t i = 0; i < state_.groups.size(); ++i) {
    const std::uint32_t count = counts[counts.size() == 1 ? 0 : i];
    if (count != state_.places[i].ranks)
      return bad(Code::layout, compose("partition_count is {}, in the file of the first rank it is "
                                       "{}",
                                       count, state_.places[i].ranks));
  }
  return {};
}

// Experts have their own, smaller data-parallel groups.
Result<> OptimizerReader::refuse_experts() const {
  const PickleId list = graph_.find(top_, "ds_zero_partition_groups");
  if (state_.places.empty() || list == kNoPickle || !graph_.is(list, PickleKind::list)) return {};
  for (const PickleId item : graph_.items(list)) {
    const PickleId count = graph_.find(item, "partition_count");
    if (count != kNoPickle && graph_.is(count, PickleKind::integer) &&
        graph_.integer(count) != static_cast<std::int64_t>(state_.places.front().ranks))
      return bad(Code::unsupported,
                 "sub-groups cut over different numbers of ranks: expert parallelism is not read "
                 "by this version");
  }
  return {};
}

Result<> OptimizerReader::read_groups(PickleId base) {
  EBB_TRY_ASSIGN(
      std::vector<ReadGroup> groups,
      param_groups_of(file_.archive, graph_.find(base, "param_groups"), config_, state_.groups));
  // BF16_Optimizer and offloading keep the momentum cut like the master weights.
  const bool whole = facts_.zero_optimizer == "DeepSpeedZeroOptimizer" && !config_.offload;
  for (ReadGroup& group : groups) {
    for (const std::size_t buffer : group.buffers)
      whole_momentum_[buffer] = whole && group.entry.optimizer == "muon" ? 1 : 0;
    facts_.groups.push_back(std::move(group.entry));
  }
  return {};
}

// The elastic form keeps the state of each group, but none of its hyper-parameters.
Result<> OptimizerReader::name_groups_of_elastic(std::size_t count) {
  if (count != state_.groups.size())
    return bad(Code::layout,
               compose("base_optimizer_state has {} groups, param_shapes describes {}", count,
                       state_.groups.size()));
  for (const Group& params : state_.groups) {
    GroupEntry group;
    group.optimizer = group_optimizer(config_, group);
    for (const Param& param : params) group.params.push_back(param.name);
    facts_.groups.push_back(std::move(group));
  }
  if (file_.rank == Rank{0}) checkpoint_.building().notes.emplace_back(kElastic);
  return {};
}

Result<std::vector<PickleId>> OptimizerReader::tensors_of(std::string_view name) const {
  const PickleId list = graph_.find(top_, name);
  if (list == kNoPickle || !graph_.is(list, PickleKind::list))
    return bad(Code::corrupt, compose("no list {}", name));
  const std::span<const PickleId> items = graph_.items(list);
  if (items.size() != state_.groups.size())
    return bad(Code::layout, compose("{} has {} buffers, param_shapes describes {}", name,
                                     items.size(), state_.groups.size()));
  return std::vector<PickleId>(items.begin(), items.end());
}

// Alignment gaps between parameters become nameless parameters of their own.
const Group& OptimizerReader::with_gaps(std::size_t number) {
  const Group& params = state_.groups[number];
  const PickleId lists = graph_.find(top_, "param_alignment_paddings");
  const std::span<const PickleId> groups = lists != kNoPickle && graph_.is(lists, PickleKind::list)
                                               ? graph_.items(lists)
                                               : std::span<const PickleId>{};
  const std::span<const PickleId> gaps =
      number < groups.size() && graph_.is(groups[number], PickleKind::list)
          ? graph_.items(groups[number])
          : std::span<const PickleId>{};
  const auto is_gap = [this](PickleId id) {
    return graph_.is(id, PickleKind::integer) && graph_.integer(id) > 0;
  };
  if (std::ranges::none_of(gaps, is_gap)) return params;
  gapped_.clear();
  for (std::size_t i = 0; i < params.size(); ++i) {
    gapped_.push_back(params[i]);
    constexpr std::int64_t kMaxGap = 1 << 20;  // elements; real ones are below 16
    if (i < gaps.size() && is_gap(gaps[i]))
      gapped_.push_back(
          {"", {static_cast<std::uint64_t>(std::min(graph_.integer(gaps[i]), kMaxGap))}});
  }
  return gapped_;
}

// Stages 1 and 2: partitions, less the padding at each one's end, laid end to end are the group.
Result<Cut> OptimizerReader::cut_of(std::size_t number, const Group& group, PickleId master) {
  const GroupPlace place = state_.places[number];
  if (facts_.stage == 3) return cut_each(group, place.rank, place.ranks);
  EBB_TRY_ASSIGN(const TorchTensor tensor, torch_tensor(graph_, master));
  const std::uint64_t elems = tensor.elems();
  const std::uint64_t total = elems_of(group);
  std::uint64_t& start = state_.starts[number];
  if (start > total)
    return bad(Code::layout, "param_alignment_paddings are not those of the other ranks' files");
  const std::uint64_t left = total - start;
  const PickleId paddings = graph_.find(top_, "group_paddings");
  std::uint64_t padding = elems > left ? elems - left : 0;
  std::uint64_t lean = elems - padding;
  std::uint64_t full = elems;
  if (paddings != kNoPickle && graph_.is(paddings, PickleKind::list) &&
      number < graph_.items(paddings).size()) {
    const PickleId stored = graph_.items(paddings)[number];
    constexpr std::int64_t kMaxPadding = std::int64_t{1} << 50;
    if (!graph_.is(stored, PickleKind::integer) || graph_.integer(stored) < 0 ||
        graph_.integer(stored) > kMaxPadding)
      return bad(Code::corrupt, "group_paddings holds something that is no length");
    padding = static_cast<std::uint64_t>(graph_.integer(stored));
    const bool padded = facts_.zero_optimizer == "BF16_Optimizer";
    if (padded && padding > elems)
      return Error{Code::layout,
                   compose("{}: its partition has {} elements, fewer than the padding of {}",
                           where(number), elems, padding)};
    lean = padded ? elems - padding : elems;
    full = lean + padding;
  }
  if (lean > left)
    return Error{
        Code::layout,
        compose("{}: its parameters take {} elements, but the partitions up to this rank hold {}",
                where(number), total, start + lean)};
  if (place.rank == Rank{0}) state_.partition[number] = full;
  if (state_.partition[number] != full)
    return Error{Code::layout,
                 compose("{}: its partition has {} elements, in the file of rank 0 it has {}",
                         where(number), full, state_.partition[number])};
  const std::uint64_t even =
      std::min(checked_mul(full, index_of(place.rank)).value_or(total), total);
  state_.padded_between = state_.padded_between || start != even;
  Cut cut = cut_flat(group, {start, lean}, padding);
  start += lean;
  return cut;
}

Result<> OptimizerReader::read_partitions(std::string_view masters, PickleId base) {
  EBB_TRY_ASSIGN(const std::vector<PickleId> tensors, tensors_of(masters));
  const bool elastic = graph_.is(base, PickleKind::list);
  const std::map<std::int64_t, PickleId> states =
      states_by_buffer(graph_, elastic ? kNoPickle : base);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    group_ = &with_gaps(i);
    EBB_TRY_ASSIGN(const Cut cut, cut_of(i, *group_, tensors[i]));
    checkpoint_.building().padding_elems += cut.padding;
    EBB_TRY(add_state(i, cut, "master", tensors[i], tensors[i]));
    const auto found = states.find(static_cast<std::int64_t>(i));
    const PickleId of_buffer = elastic                 ? graph_.items(base)[i]
                               : found == states.end() ? kNoPickle
                                                       : found->second;
    EBB_TRY(read_states(i, cut, of_buffer, tensors[i]));
    const bool last = index_of(state_.places[i].rank) + 1 == state_.places[i].ranks;
    if (const std::uint64_t total = elems_of(*group_);
        last && facts_.stage != 3 && state_.starts[i] != total)
      return Error{
          Code::layout,
          compose("{}: its parameters take {} elements, but the partitions of all ranks hold {}",
                  where(i), total, state_.starts[i])};
  }
  return {};
}

Result<> OptimizerReader::read_states(std::size_t number, const Cut& cut, PickleId states,
                                      PickleId master) {
  if (states == kNoPickle || !graph_.is(states, PickleKind::dict)) return {};
  const std::span<const PickleId> entries = graph_.items(states);
  if (entries.size() > 2 * kMaxStates)
    return Error{Code::limit, compose("{}: {} states; the limit is {}", where(number),
                                      entries.size() / 2, kMaxStates)};
  for (std::size_t i = 0; i + 1 < entries.size(); i += 2) {
    if (!graph_.is(entries[i], PickleKind::string)) continue;
    const std::string state(graph_.text(entries[i]));
    const PickleId what = entries[i + 1];
    bool flat = false;
    if (is_torch_tensor(graph_, what)) {
      EBB_TRY_ASSIGN(const TorchTensor tensor, torch_tensor(graph_, what));
      flat = tensor.shape.size() == 1;
    }
    if (flat) {
      EBB_TRY(add_state(number, cut, state, what, master));
      continue;
    }
    EBB_TRY_ASSIGN(Value value, value_of(graph_, what, &file_.archive));
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

Result<> OptimizerReader::add_state(std::size_t number, const Cut& cut, const std::string& state,
                                    PickleId tensor, PickleId master) {
  EBB_TRY_ASSIGN(const TorchTensor what, torch_tensor(graph_, tensor));
  if (facts_.stage == 3 && what.elems() == 0 && cut.full != 0) {
    EBB_TRY_ASSIGN(const Flat raw, swapped(state, master, cut.full));
    return partitions_.add(*group_, cut, state, file_.holder, raw, where(number));
  }
  EBB_TRY_ASSIGN(const Flat flat, checkpoint_.add_flat(file_.archive, file_.file, what));
  const bool touched = whole_momentum_[number] != 0 && state != "master" &&
                       flat.elems == touched_elems(*group_, cut);
  if (touched)
    return partitions_.add_touched(*group_, cut, state, file_.holder, flat, where(number));
  return partitions_.add(*group_, cut, state, file_.holder, flat, where(number));
}

// A buffer that lives on NVMe: offloaded_tensors/rankRR/[<state>-]<ds_id>.tensor.swp, raw fp32.
Result<Flat> OptimizerReader::swapped(std::string_view state, PickleId master,
                                      std::uint64_t elems) {
  const std::string_view id = swap_id(graph_, master);
  if (id.empty())
    return bad(Code::incomplete, "a buffer is empty and names no swap file it could lie in");
  const std::uint32_t rank = index_of(file_.holder);
  std::string name = file_.folder + "offloaded_tensors/rank" + (rank < 10 ? "0" : "");
  name += std::to_string(rank);
  name += '/';
  if (state != "master") (name += state) += '-';
  (name += id) += ".tensor.swp";
  const SourceTree::Entry* entry = file_.tree.find(name);
  if (entry == nullptr)
    return bad(Code::incomplete, "its buffer lies in " + json_string(name) + ", which is missing");
  const auto bytes = checked_mul(elems, 4);
  if (!bytes || entry->size < *bytes)
    return bad(Code::incomplete, compose("{} has {} bytes, its {} elements need more",
                                         json_string(name), entry->size, elems));
  std::vector<FileEntry>& files = checkpoint_.building().files;
  files.push_back({name, entry->size, file_.holder});
  return checkpoint_.add_raw(static_cast<std::uint32_t>(files.size() - 1), elems);
}

}  // namespace ebb::formats::deepspeed
