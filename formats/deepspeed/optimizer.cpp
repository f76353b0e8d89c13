#include "formats/deepspeed/optimizer.h"

#include <algorithm>

#include "formats/core/json_text.h"
#include "formats/core/units.h"

namespace formats {
namespace {

constexpr std::string_view kStage3Masters = "fp32_flat_groups";
constexpr std::string_view kStage12Masters = "single_partition_of_fp32_groups";

// ZeroStageEnum(3), getattr(ZeroStageEnum, 'weights') or a plain number.
std::int64_t stage_number(const PickleGraph& graph, PickleId id) {
  constexpr std::string_view kNames[] = {"disabled", "optimizer_states", "gradients", "weights"};
  if (id == kNoPickle) return 1;  // BF16_Optimizer does not say; it is stage 1
  if (graph.is(id, PickleKind::integer)) return graph.integer(id);
  if (!graph.is(id, PickleKind::object)) return 1;
  const std::span<const PickleId> args = graph.items(graph.args(id));
  if (args.size() == 1 && graph.is(args[0], PickleKind::integer)) return graph.integer(args[0]);
  if (args.size() == 2 && graph.is(args[1], PickleKind::string))
    for (std::size_t i = 0; i < std::size(kNames); ++i)
      if (graph.text(args[1]) == kNames[i]) return static_cast<std::int64_t>(i);
  return 1;
}

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

std::string optimizer_kind(const PickleGraph& graph, PickleId top, const GroupEntry& group) {
  for (const auto& [name, value] : group.settings)
    if (name == "use_muon" && value.kind == Value::Kind::boolean)
      return value.integer != 0 ? "muon" : "adamw";
  const PickleId type = graph.find(graph.find(graph.find(top, "ds_config"), "optimizer"), "type");
  if (type == kNoPickle || !graph.is(type, PickleKind::string)) return {};
  std::string kind(graph.text(type));
  std::transform(kind.begin(), kind.end(), kind.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return kind;
}

}  // namespace

Result<std::uint32_t> ds_partition_count(const PickleGraph& graph) {
  const PickleId top = graph.find(graph.root(), "optimizer_state_dict");
  PickleId count = graph.find(top, "partition_count");
  // Stages 1 and 2 keep one number a group; without experts they are the same.
  if (count != kNoPickle && graph.is(count, PickleKind::list) && !graph.items(count).empty()) {
    const std::span<const PickleId> all = graph.items(count);
    count = all[0];
    for (const PickleId other : all)
      if (!graph.is(other, PickleKind::integer) || !graph.is(count, PickleKind::integer) ||
          graph.integer(other) != graph.integer(count))
        return Error{Code::unsupported,
                     graph.where() + ": parameter groups cut over different numbers of ranks",
                     {}};
  }
  if (count == kNoPickle || !graph.is(count, PickleKind::integer) || graph.integer(count) < 1 ||
      graph.integer(count) > (1 << 20))
    return Error{Code::corrupt, graph.where() + ": partition_count is no number of ranks", {}};
  return static_cast<std::uint32_t>(graph.integer(count));
}

Error DsOptimizer::bad(Code code, std::string_view why) const {
  return Error{code, file_.where + ": " + std::string(why), {}};
}

Result<> DsOptimizer::read() {
  top_ = graph_.find(graph_.root(), "optimizer_state_dict");
  if (top_ == kNoPickle) return bad(Code::corrupt, "no optimizer_state_dict");
  TRY_ASSIGN(const std::uint32_t world, ds_partition_count(graph_));
  if (world != file_.world)
    return bad(Code::layout, "partition_count is " + std::to_string(world) +
                                 ", in the file of "
                                 "the first rank it is " +
                                 std::to_string(file_.world));
  const bool stage3 = graph_.find(top_, kStage3Masters) != kNoPickle;
  stage_ = stage3 ? 3 : stage_number(graph_, graph_.find(top_, "zero_stage"));
  const PickleId base = graph_.find(top_, stage3 ? "optimizer_state_dict" : "base_optimizer_state");
  if (base == kNoPickle || !graph_.is(base, PickleKind::dict))
    return bad(Code::unsupported,
               "optimizer state in the elastic form is not read by this version");
  TRY(read_groups(base));
  read_values();
  return read_partitions(stage3 ? kStage3Masters : kStage12Masters, base);
}

// param_groups[i]["params"] lists the flat buffers that belong to the group.
Result<> DsOptimizer::read_groups(PickleId base) {
  whole_momentum_.assign(shapes_.size(), 0);
  const PickleId list = graph_.find(base, "param_groups");
  if (list == kNoPickle || !graph_.is(list, PickleKind::list))
    return bad(Code::corrupt, "no list param_groups");
  for (const PickleId item : graph_.items(list)) {
    TRY_ASSIGN(const Value value, value_of(graph_, item, nullptr));
    GroupEntry group;
    for (const auto& [key, setting] : value.entries)
      if (key.text != "params") group.settings.emplace_back(key.text, setting);
    group.optimizer = optimizer_kind(graph_, graph_.root(), group);
    const Value* params = value.find("params");
    for (const Value& buffer : params == nullptr ? std::vector<Value>{} : params->items) {
      if (buffer.kind != Value::Kind::integer || buffer.integer < 0 ||
          static_cast<std::uint64_t>(buffer.integer) >= shapes_.size())
        return bad(Code::layout,
                   "a parameter group refers to a flat buffer that param_shapes "
                   "does not describe");
      const auto number = static_cast<std::size_t>(buffer.integer);
      whole_momentum_[number] = stage_ != 3 && group.optimizer == "muon" ? 1 : 0;
      for (const DsParam& param : shapes_[number]) group.params.push_back(param.name);
    }
    groups_.push_back(std::move(group));
  }
  return {};
}

void DsOptimizer::read_values() {
  for (const std::string_view name :
       {"loss_scaler", "dynamic_loss_scale", "overflow", "clip_grad"}) {
    const PickleId id = graph_.find(top_, name);
    if (id == kNoPickle) continue;
    // Scalers are objects whose state is a dict of numbers.
    const bool object = graph_.is(id, PickleKind::object) && graph_.state(id) != kNoPickle;
    const auto value = value_of(graph_, object ? graph_.state(id) : id, nullptr);
    if (value) values_.push_back({std::string(name), {std::string(name)}, *value});
  }
}

Result<std::vector<PickleId>> DsOptimizer::tensors_of(std::string_view name) const {
  const PickleId list = graph_.find(top_, name);
  if (list == kNoPickle || !graph_.is(list, PickleKind::list))
    return bad(Code::corrupt, "no list " + std::string(name));
  const std::span<const PickleId> items = graph_.items(list);
  if (items.size() != shapes_.size())
    return bad(Code::layout, std::string(name) + " has " + std::to_string(items.size()) +
                                 " buffers, param_shapes describes " +
                                 std::to_string(shapes_.size()));
  return std::vector<PickleId>(items.begin(), items.end());
}

// Alignment gaps between parameters become nameless parameters of their own.
Result<DsGroup> DsOptimizer::group_of(std::size_t number) {
  std::vector<DsParam> params;
  const PickleId lists = graph_.find(top_, "param_alignment_paddings");
  const std::span<const PickleId> groups = lists != kNoPickle && graph_.is(lists, PickleKind::list)
                                               ? graph_.items(lists)
                                               : std::span<const PickleId>{};
  const std::span<const PickleId> gaps =
      number < groups.size() && graph_.is(groups[number], PickleKind::list)
          ? graph_.items(groups[number])
          : std::span<const PickleId>{};
  for (std::size_t i = 0; i < shapes_[number].size(); ++i) {
    params.push_back(shapes_[number][i]);
    const bool gap =
        i < gaps.size() && graph_.is(gaps[i], PickleKind::integer) && graph_.integer(gaps[i]) > 0;
    if (gap) params.push_back({"", {static_cast<std::uint64_t>(graph_.integer(gaps[i]))}});
  }
  return DsGroup::make(std::move(params), stage_ == 3 ? Policy::zero3 : Policy::zero12,
                       file_.world);
}

Result<> DsOptimizer::read_partitions(std::string_view masters, PickleId base) {
  TRY_ASSIGN(const std::vector<PickleId> tensors, tensors_of(masters));
  const PickleId states = graph_.find(base, "state");
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    TRY_ASSIGN(const DsGroup group, group_of(i));
    checkpoint_.building().padding_elems += group.layout().padding_elems(file_.rank);
    TRY(add_state(group, i, "master", tensors[i], tensors[i]));
    TRY(read_states(group, i, graph_.find(states, static_cast<std::int64_t>(i)), tensors[i]));
  }
  return {};
}

Result<> DsOptimizer::read_states(const DsGroup& group, std::size_t number, PickleId states,
                                  PickleId master) {
  if (states == kNoPickle || !graph_.is(states, PickleKind::dict)) return {};
  const std::span<const PickleId> entries = graph_.items(states);
  for (std::size_t i = 0; i + 1 < entries.size(); i += 2) {
    if (!graph_.is(entries[i], PickleKind::string)) continue;
    const std::string state(graph_.text(entries[i]));
    const PickleId what = entries[i + 1];
    bool flat = false;
    if (is_torch_tensor(graph_, what)) {
      TRY_ASSIGN(const TorchTensor tensor, torch_tensor(graph_, what));
      flat = tensor.shape.size() == 1;
    }
    if (flat) {
      TRY(add_state(group, number, state, what, master));
      continue;
    }
    TRY_ASSIGN(Value value, value_of(graph_, what, &file_.archive));
    values_.push_back({"optimizer.state." + std::to_string(number) + "." + state,
                       {"optimizer", "state", static_cast<std::int64_t>(number), state},
                       std::move(value)});
  }
  return {};
}

Result<> DsOptimizer::add_state(const DsGroup& group, std::size_t number, const std::string& state,
                                PickleId tensor, PickleId master) {
  TRY_ASSIGN(const TorchTensor what, torch_tensor(graph_, tensor));
  const std::string where = file_.where + ": group " + std::to_string(number);
  const std::uint64_t wanted = group.layout().buffer_elems(file_.rank);
  if (stage_ == 3 && what.elems() == 0 && wanted != 0) {
    TRY_ASSIGN(const DsFlat raw, swapped(state, master, wanted));
    return partitions_.add(group, state, file_.rank, raw, where);
  }
  TRY_ASSIGN(const DsFlat flat, checkpoint_.add_flat(file_.archive, file_.file, what));
  const bool touched = whole_momentum_[number] != 0 && state != "master" &&
                       flat.elems == group.touched_elems(file_.rank);
  if (touched) return partitions_.add_touched(group, state, file_.rank, flat, where);
  return partitions_.add(group, state, file_.rank, flat, where);
}

// A buffer that lives on NVMe: offloaded_tensors/rankRR/[<state>-]<ds_id>.tensor.swp, raw fp32.
Result<DsFlat> DsOptimizer::swapped(std::string_view state, PickleId master, std::uint64_t elems) {
  const std::string_view id = swap_id(graph_, master);
  if (id.empty())
    return bad(Code::incomplete, "a buffer is empty and names no swap file it could lie in");
  const std::uint32_t rank = index_of(file_.rank);
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
    return bad(Code::incomplete, json_string(name) + " has " + std::to_string(entry->size) +
                                     " bytes, its " + std::to_string(elems) +
                                     " elements need more");
  std::vector<FileEntry>& files = checkpoint_.building().files;
  files.push_back({name, entry->size, file_.rank});
  return checkpoint_.add_raw(static_cast<std::uint32_t>(files.size() - 1), elems);
}

}  // namespace formats
