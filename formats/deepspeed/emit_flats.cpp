#include "ebb/formats/deepspeed/emit_flats.h"

#include <algorithm>
#include <set>

#include "ebb/formats/core/float_cast.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/units.h"
#include "ebb/formats/deepspeed/config.h"

namespace ebb::formats::deepspeed {
namespace {

constexpr std::uint64_t kNcclAlign = 2;  // stages 1 and 2: partitions hold whole pairs of elements

// A flat buffer has one dtype: the parameters' own, or F32 where they differ.
class CommonDType {
 public:
  void add(DType dtype) {
    if (dtype_ && *dtype_ != dtype)
      dtype_ = is_widening(dtype, DType::f32) && is_widening(*dtype_, DType::f32) ? DType::f32
                                                                                  : DType::f64;
    else
      dtype_ = dtype;
  }
  DType get() const { return dtype_.value_or(DType::f32); }

 private:
  std::optional<DType> dtype_;
};

std::uint32_t tensor_of(const Trained& param, const Field& field) {
  return field.state.empty() ? param.source : param.states.at(field.state);
}

TensorData data_of(std::uint32_t tensor, Box box, DType dtype, const Catalog& content) {
  TensorData data{tensor, std::move(box)};
  if (content.tensors[tensor].dtype != dtype) data.as = dtype;
  return data;
}

// A parameter without a state that others of its group have.
Error lacks_state(const Trained& param, const std::string& state, const Catalog& content) {
  const auto found = std::ranges::find_if(content.tensors, [&](const TensorEntry& tensor) {
    return tensor.name == param.name && tensor.state == state;
  });
  constexpr const char* kHint =
      "leave the state out of all of them with --states, or the parameter with --exclude";
  if (found == content.tensors.end())
    return Error{Code::unsupported,
                 compose("{} has no {}, other parameters of its group have: DeepSpeed keeps one "
                         "buffer for all",
                         json_string(param.name), state),
                 kHint};
  return Error{
      Code::unsupported,
      compose("{} has a {} of shape {}, and is {} itself: DeepSpeed keeps one buffer for "
              "all of a group, of states that have their parameter's shape",
              json_string(param.name), state, to_string(found->shape), to_string(param.shape)),
      kHint};
}

Result<std::vector<Field>> states_of(const std::vector<const Trained*>& params, bool touched,
                                     const Catalog& content) {
  std::set<std::string> names;
  for (const Trained* param : params)
    for (const auto& [state, tensor] : param->states) names.insert(state);
  std::vector<Field> fields;
  for (const std::string& state : names) {
    CommonDType dtype;
    for (const Trained* param : params) {
      const auto found = param->states.find(state);
      if (found == param->states.end()) return lacks_state(*param, state, content);
      const TensorEntry& tensor = content.tensors[found->second];
      if (!is_floating(tensor.dtype))
        return Error{Code::unsupported,
                     compose("{} is {}: DeepSpeed's state buffers hold floating point",
                             label_of(tensor), name_of(tensor.dtype))};
      dtype.add(tensor.dtype);
    }
    fields.push_back({state, dtype.get(), touched});
  }
  return fields;
}

// Masters that come from the model's own copy are at least F32.
DType master_dtype(const std::vector<const Trained*>& params, const Catalog& content) {
  CommonDType dtype;
  for (const Trained* param : params) {
    const TensorEntry& tensor = content.tensors[param->source];
    const bool own = tensor.state != "master" && is_widening(tensor.dtype, DType::f32);
    dtype.add(own ? DType::f32 : tensor.dtype);
  }
  return dtype.get();
}

// One counter a buffer. Content of others that counts steps for the whole run only says so for
// everything that an optimizer with a counter has touched; Muon and SGD, which keep momentum alone,
// have none, and what an engine of DeepSpeed's did not count stays so.
std::optional<std::int64_t> steps_of(const std::vector<const Trained*>& params, const Content& what,
                                     const std::vector<Field>& states, EmitPlan& plan) {
  std::optional<std::int64_t> steps;
  for (const Trained* param : params)
    if (param->steps) steps = std::max(steps.value_or(*param->steps), *param->steps);
  for (const Trained* param : params)
    if (param->steps && *param->steps != *steps)
      plan.dropped.push_back(
          compose("step of {}, {}: its buffer counts {} for all parameters in it",
                  json_string(param->name), *param->steps, *steps));
  const bool counts = std::ranges::any_of(
      states, [](const Field& state) { return state.state != "momentum_buffer"; });
  if (!steps && counts && what.counts_the_run_alone && what.step > 0) steps = what.step;
  return steps;
}

// Buffers of at least `limit` elements a rank, the parameter that reaches it included.
std::vector<std::vector<const Trained*>> sub_groups_of(const OutGroup& group, const Content& what) {
  const std::uint64_t limit = sub_group_elems(what.config);
  std::vector<std::vector<const Trained*>> out(1);
  std::uint64_t elems = 0;
  for (const Trained& param : group.params) {
    if (what.stage == 3 && elems >= limit) {
      out.emplace_back();
      elems = 0;
    }
    out.back().push_back(&param);
    elems += div_ceil(volume(param.shape), what.world);
  }
  return out;
}

}  // namespace

Result<OutFlat> OutFlat::make(std::size_t group, std::vector<const Trained*> params,
                              const Content& what, const Catalog& content, EmitPlan& plan) {
  const std::uint64_t align = what.stage == 3 ? 1 : param_alignment(what.config, what.model_dtype);
  const bool touched =
      what.groups[group].muon && what.stage != 3 && !cuts_momentum(what.config, what.stage);
  EBB_TRY_ASSIGN(std::vector<Field> states, states_of(params, touched, content));
  const std::optional<std::int64_t> steps = steps_of(params, what, states, plan);
  const Field master{"", master_dtype(params, content)};
  std::vector<Shape> shapes;
  std::vector<std::size_t> places;
  std::vector<std::uint64_t> gaps;
  std::uint64_t end = 0;
  for (const Trained* param : params) {
    places.push_back(shapes.size());
    shapes.push_back(param->shape);
    end += volume(param->shape);
    gaps.push_back(param == params.back() ? 0 : align_up(end, align) - end);
    if (gaps.back() > 0) shapes.push_back({gaps.back()});
    end += gaps.back();
  }
  Layout::Spec spec;
  // Only matrices must not be split: the other groups are cut as always.
  const bool flat_cut = what.policy == Policy::zero12_boundary && !what.groups[group].muon;
  spec.policy = flat_cut ? Policy::zero12 : what.policy;
  spec.mesh.shard_world = what.world;
  spec.align_elems = what.stage == 3 ? 1 : kNcclAlign;
  EBB_TRY_ASSIGN(Layout layout, Layout::make(std::move(spec), std::move(shapes)));
  return OutFlat{
      group,  std::move(params), std::move(layout), std::move(places), std::move(gaps), steps,
      master, std::move(states)};
}

OutFlat::Slice OutFlat::slice(std::size_t p, Rank rank) const {
  return {layout.local_elems(places[p], rank), layout.buffer_first(places[p], rank)};
}

std::vector<StoragePart> OutFlat::partition(const Field& field, Rank rank, std::uint64_t elems,
                                            const Catalog& content) const {
  std::vector<StoragePart> parts;
  std::uint64_t end = 0;
  const auto fill = [&](std::uint64_t to) {
    if (to > end) parts.emplace_back(ZeroElems{to - end});
    end = std::max(end, to);
  };
  for (std::size_t p = 0; p < params.size(); ++p) {
    const Slice place = slice(p, rank);
    if (place.count == 0) continue;
    fill(place.first);
    for (Piece& piece : layout.pieces(places[p], rank))
      parts.emplace_back(
          data_of(tensor_of(*params[p], field), std::move(piece.box), field.dtype, content));
    end += place.count;
  }
  fill(elems);
  return parts;
}

std::vector<StoragePart> OutFlat::touched(const Field& field, Rank rank,
                                          const Catalog& content) const {
  std::vector<StoragePart> parts;
  for (std::size_t p = 0; p < params.size(); ++p)
    if (slice(p, rank).count > 0)
      parts.emplace_back(
          data_of(tensor_of(*params[p], field), whole(params[p]->shape), field.dtype, content));
  return parts;
}

TensorData OutFlat::whole_of(std::size_t p, const Field& field, const Catalog& content) const {
  const std::uint32_t tensor = tensor_of(*params[p], field);
  const DType dtype =
      field.state.empty() ? master_dtype({params[p]}, content) : content.tensors[tensor].dtype;
  return data_of(tensor, whole(params[p]->shape), dtype, content);
}

Result<std::vector<OutFlat>> cut_flats(const Content& what, const Catalog& content,
                                       EmitPlan& plan) {
  std::vector<OutFlat> flats;
  for (std::size_t g = 0; g < what.groups.size(); ++g)
    for (std::vector<const Trained*>& params : sub_groups_of(what.groups[g], what)) {
      EBB_TRY_ASSIGN(OutFlat flat, OutFlat::make(g, std::move(params), what, content, plan));
      flats.push_back(std::move(flat));
    }
  return flats;
}

}  // namespace ebb::formats::deepspeed
