#include "ebb/formats/conversion/convert.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <tuple>
#include <utility>

#include "ebb/formats/conversion/block_states.h"
#include "ebb/formats/conversion/complete_model.h"
#include "ebb/formats/conversion/composites.h"
#include "ebb/formats/conversion/small_values.h"
#include "ebb/formats/conversion/source_names.h"
#include "ebb/formats/conversion/step_counters.h"
#include "ebb/formats/conversion/ties.h"
#include "ebb/formats/conversion/unread.h"
#include "ebb/formats/conversion/unsafe_values.h"
#include "ebb/formats/conversion/weights.h"
#include "ebb/formats/conversion/weights_alone.h"
#include "ebb/formats/conversion/wrappers.h"
#include "ebb/formats/core/bytes.h"
#include "ebb/formats/core/float_cast.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/elements/box_reader.h"
#include "ebb/formats/state_dict/names.h"
#include "ebb/formats/state_dict/numbers.h"
#include "ebb/formats/state_dict/small_tensors.h"
#include "ebb/formats/state_dict/state_dict.h"

namespace ebb::formats {

namespace {

std::uint64_t stored_bytes(const TensorEntry& tensor) {
  return div_ceil(volume(tensor.shape) * bits_of(tensor.dtype), 8);
}

// The largest first, each to the emptiest rank; ties to the lower number.
std::vector<std::uint32_t> owners_by_size(const std::vector<TensorEntry>& tensors,
                                          std::uint32_t world) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
    return stored_bytes(tensors[a]) > stored_bytes(tensors[b]);
  });
  std::vector<std::uint64_t> load(world, 0);
  std::vector<std::uint32_t> owners(tensors.size());
  for (const std::size_t tensor : order) {
    const auto least = std::ranges::min_element(load);
    owners[tensor] = static_cast<std::uint32_t>(least - load.begin());
    *least += stored_bytes(tensors[tensor]);
  }
  return owners;
}

// Fails for a tensor that means nothing in another format.
Result<> check_free(const Format& from, const TensorEntry& tensor) {
  const std::string_view why = from.why_bound(tensor);
  if (why.empty()) return {};
  return Error{Code::unsupported,
               compose("tensor '{}' cannot leave {}: {}", label_of(tensor), from.name(), why),
               "--states param converts the weights alone"};
}

TensorEntry without_chunks(const TensorEntry& tensor) {
  TensorEntry out;
  out.key = tensor.key;
  out.path = tensor.path;
  out.name = tensor.name;
  out.state = tensor.state;
  out.dtype = tensor.dtype;
  out.shape = tensor.shape;
  out.part_of = tensor.part_of;
  return out;
}

Catalog without_tensors(const Catalog& catalog) {
  Catalog out;
  out.format = catalog.format;
  out.producer = catalog.producer;
  out.step = catalog.step;
  out.world = catalog.world;
  out.values = catalog.values;
  out.groups = catalog.groups;
  out.grouped = catalog.grouped;
  out.containers = catalog.containers;
  out.param_steps = catalog.param_steps;
  out.parts = catalog.parts;
  return out;
}

// What two formats mean to each other.
enum class Relation : std::uint8_t {
  same,
  state_dicts,  // both hold torch state dicts: keys, paths and values stay, names are respelled
  parts,  // the same, but the target's parts lie in files of their own: names say where tensors go
  none,
};

bool is_state_dict(const Format& format) { return format.traits().keys == Keys::state_dict; }

Relation relation_of(const Format& from, const Format& to) {
  if (is_state_dict(from) && to.traits().parts == Parts::files) return Relation::parts;
  if (&from == &to) return Relation::same;
  return is_state_dict(from) && is_state_dict(to) ? Relation::state_dicts : Relation::none;
}

// What only the source's own format means. Of a torch state dict the places of values say something
// elsewhere, too, once its leaves are put together.
Result<> leave_format(const Format& from, const Catalog& source, Catalog& content) {
  const bool nested = is_state_dict(from);
  if (nested) {
    EBB_TRY_ASSIGN(content.values, values_in_one_piece(source));
  }
  std::erase_if(content.values, [](const auto& value) { return value.echoed; });
  content.containers.clear();
  if (nested) return {};
  // The key says the place, but for "": a path without items is the whole file.
  for (ValueEntry& value : content.values)
    if (!value.key.empty()) value.path.clear();
  return {};
}

// A setting that repeats the group's optimizer is how formats without another place for it say it;
// Megatron calls AdamW "adam" there.
void leave_repetitions(std::vector<GroupEntry>& groups) {
  for (GroupEntry& group : groups)
    std::erase_if(group.settings, [&](const auto& setting) {
      const auto& [name, value] = setting;
      return name == "optimizer" && value.kind == Value::Kind::string &&
             (value.text == group.optimizer ||
              (value.text == "adam" && group.optimizer == "adamw"));
    });
}

// Whether a state's key in a state dict is as good as any where there are only keys.
bool says_the_same(const ConvertRequest& request, const TensorEntry& tensor) {
  return is_state_dict(request.from) && request.to.traits().holds == Holds::keyed_tensors &&
         tensor.key && tensor.key->ends_with(compose(".{}.{}", tensor.name, tensor.state));
}

Result<Layout> layout_of(const Catalog& content, Policy policy, std::uint32_t world) {
  std::vector<Shape> shapes;
  for (const TensorEntry& tensor : content.tensors) shapes.push_back(tensor.shape);
  Layout::Spec spec{.policy = policy, .mesh = {world, 1}};
  if (policy == Policy::layer_wise) spec.owners = owners_by_size(content.tensors, world);
  return Layout::make(std::move(spec), std::move(shapes));
}

// What is to be written, before the target has its own names for it.
struct Content {
  Catalog catalog;
  std::vector<MadeOf> made_of;
  std::vector<std::string> changes;
  std::vector<std::string> unsafe;  // Conversion::unsafe
  std::optional<ParamNames> names;  // of all there is; unset: of what is here
};

Result<Content> selected_content(const Checkpoint& source, const ConvertRequest& request) {
  const Catalog& all = source.catalog();
  Content content{without_tensors(all), {}, {}, {}, {}};
  const Relation kin = relation_of(request.from, request.to);
  const bool crossing = kin == Relation::none;
  if (crossing) EBB_TRY(leave_format(request.from, all, content.catalog));
  const std::optional<CommonNames> names = crossing ? request.from.common_names(all) : std::nullopt;
  // Groups say what their settings' tensors do, and are spelled anew.
  const bool settings_leave =
      is_state_dict(request.from) && (crossing || kin == Relation::parts ||
                                      (request.edits != nullptr && request.edits->change_groups()));
  if (names) content.catalog.groups = names->groups;
  content.unsafe = leave_unsafe(content.catalog);
  if (crossing) request.from.say_for_others(content.catalog);
  if (crossing) leave_repetitions(content.catalog.groups);
  const bool alone = takes_weights_alone(request.from, all, request.wanted);
  for (std::uint32_t i = 0; i < all.tensors.size(); ++i) {
    // A group keeps its settings whatever states are chosen, tensors or not.
    const bool setting = is_small(all.tensors[i]) && is_setting(all.tensors[i]);
    const bool stays = setting && !alone && is_state_dict(request.from);
    if (!stays && request.wanted && !request.wanted(all.tensors[i])) continue;
    if (settings_leave && setting) continue;
    TensorEntry tensor = without_chunks(all.tensors[i]);
    if (names) std::tie(tensor.name, tensor.state) = names->tensors[i];
    if (crossing) {
      EBB_TRY(check_free(request.from, tensor));
      if (request.to.traits().steps == StepCounters::values) {
        EBB_TRY_ASSIGN(const bool lifted,
                       lift_step(source, all.tensors[i], tensor, content.catalog));
        if (lifted) continue;
      }
      if (!says_the_same(request, tensor)) tensor.key.reset();
      if (!is_state_dict(request.from)) tensor.path.clear();
    }
    content.catalog.tensors.push_back(std::move(tensor));
    content.made_of.push_back({i});
  }
  if (crossing && request.to.traits().steps == StepCounters::values)
    count_group_steps(content.catalog);
  if (alone) content.changes.push_back(leave_optimizer(all, content.catalog));
  content.changes.push_back(left_out_parameters(request.from, all, request.wanted));
  std::erase(content.changes, "");
  return content;
}

Result<Content> weights_content(const Checkpoint& source, const ConvertRequest& request) {
  EBB_TRY_ASSIGN(Weights weights, weights_of(request.from, source.catalog(), request.wanted));
  Content content{
      {}, std::move(weights.made_of), std::move(weights.changes), {}, std::move(weights.names)};
  content.catalog.format = source.catalog().format;
  content.catalog.tensors = std::move(weights.tensors);
  return content;
}

bool wants_recorded_names(const ConvertRequest& request) {
  return request.names_by_order == NamesByOrder::refused &&
         request.to.traits().resumes == Resumes::a_job;
}

Error named_by_order(const TensorEntry& tensor, const ConvertRequest& request) {
  return {Code::unsupported,
          compose("{} ({}): that this is the parameter follows from the order of the model alone, "
                  "nothing records it, and a job that resumes from {} would take it for granted",
                  json_string(tensor.name), printable(tensor.state), request.to.name()),
          "--names order takes the order; " + names_hint()};
}

// Numbers that became names leave a state dict as if they had been names: counts them, and refuses
// those that order alone gave where a job would resume from them.
Result<InferredCount> check_inferred(const Catalog& source, const Content& content,
                                     const ConvertRequest& request) {
  InferredCount count;
  const bool renames = request.edits != nullptr && !request.edits->rename.empty();
  for (std::size_t i = 0; i < content.made_of.size(); ++i) {
    if (content.made_of[i].constant) continue;
    const TensorEntry& stored = source.tensors[content.made_of[i].source_tensor];
    const TensorEntry& tensor = content.catalog.tensors[i];
    const bool told = renames && tensor.name != stored.name;
    const NamedBy by = told ? NamedBy::recorded : named_by(source, stored);
    count.add(by);
    if (by == NamedBy::order && wants_recorded_names(request))
      return named_by_order(stored, request);
  }
  return count;
}

// The same of what was a state dict once, and says so.
Result<> check_said_by_order(Catalog& catalog, const ConvertRequest& request) {
  if (request.to.traits().resumes == Resumes::nothing || said_by_order(catalog).by_order == 0)
    return {};
  const auto state = std::ranges::find_if(
      catalog.tensors, [](const TensorEntry& tensor) { return !is_weight(tensor.state); });
  if (state != catalog.tensors.end() && wants_recorded_names(request))
    return named_by_order(*state, request);
  std::erase_if(catalog.values, [](const ValueEntry& value) { return value.key == kByOrderKey; });
  return {};
}

// The content as the target stores it.
Result<Conversion> laid_out(const Checkpoint& source, const ConvertRequest& request,
                            Catalog catalog, std::vector<MadeOf> made_of) {
  Conversion conversion;
  conversion.policy = request.policy.value_or(request.to.policy_for(catalog));
  EBB_TRY_ASSIGN(const Layout layout, layout_of(catalog, conversion.policy, request.world));
  conversion.content =
      std::make_unique<ContentView>(source, std::move(catalog), std::move(made_of));
  EmitRequest wanted{.content = conversion.content->catalog(), .layout = layout};
  if (request.file_bytes) wanted.file_bytes = *request.file_bytes;
  wanted.compression = request.compression;
  EBB_TRY_ASSIGN(conversion.plan, request.to.emit(wanted));
  return conversion;
}

ParamNames names_in(const Catalog& content) {
  ParamNames names{{}, optimizer_names(SourceNames(content), content)};
  for (const TensorEntry& tensor : content.tensors)
    if (is_weight(tensor.state)) names.of_model.insert(tensor.name);
  return names;
}

// Changes by the names and states that inspection shows, so before the target has its own.
Result<> edit(const ConvertRequest& request, Content& content) {
  const Edits none;
  const Edits& edits = request.edits == nullptr ? none : *request.edits;
  EBB_TRY_ASSIGN(std::vector<std::string> made,
                 apply_edits(edits, content.catalog, content.made_of));
  const auto add = [&](std::vector<std::string> more) {
    std::ranges::move(more, std::back_inserter(content.changes));
  };
  add(std::move(made));
  const bool weights = request.taking == Taking::weights;
  // Elsewhere keys stay, or are all there is.
  const Relation kin = relation_of(request.from, request.to);
  const bool named = weights || kin == Relation::parts ||
                     (kin == Relation::none && request.to.traits().holds == Holds::parameters);
  if (named && edits.wrappers == WrapperNames::taken_off) {
    const bool known = content.names && edits.rename.empty();
    add(unwrap_names(weights ? Wrappers::off : Wrappers::off_apart,
                     known ? *content.names : names_in(content.catalog), content.catalog));
  }
  if (!edits.strip.empty()) {
    EBB_TRY_ASSIGN(std::vector<std::string> stripped, rename_all(edits.strip, content.catalog));
    add(std::move(stripped));
  } else if (weights) {
    add(hint_to_strip(content.catalog));
  }
  if (request.order != nullptr) {
    EBB_TRY_ASSIGN(std::string ordered, take_order(*request.order, content.catalog));
    content.changes.push_back(std::move(ordered));
  }
  return {};
}

// Of formats that have places for both: as they were where the content comes from.
StepCounters counters_for(const Format& to, const Catalog& content) {
  const bool both = is_state_dict(to) || to.traits().holds == Holds::keyed_tensors;
  return both ? counters_said(content) : StepCounters::tensors;
}

// A state dict that is nothing but the model's.
void place_at_the_top(std::vector<TensorEntry>& tensors) {
  for (TensorEntry& tensor : tensors) {
    tensor.key = tensor.name;
    tensor.path = {tensor.name};
  }
}

// Whether the target's numbers are those that the source has for names.
bool keeps_numbers(const Catalog& catalog, const ConvertRequest& request) {
  return request.to.traits().params == Params::numbered && request.order == nullptr &&
         catalog.grouped == GroupOrder::of_the_optimizer;
}

// Names that the target takes for granted; of a state dict they may be inferred.
Result<> check_names(const Catalog& source, const ConvertRequest& request, Content& content) {
  if (keeps_numbers(content.catalog, request)) return {};
  const bool parameters = request.to.traits().holds == Holds::parameters;
  if (parameters) EBB_TRY(check_named(source, content.catalog));
  if (!is_state_dict(request.from)) return {};
  if (parameters) EBB_TRY(check_understood(source, content.catalog));
  EBB_TRY_ASSIGN(const InferredCount inferred, check_inferred(source, content, request));
  std::ranges::move(inferred.lines(), std::back_inserter(content.changes));
  if (inferred.by_order > 0 && request.to.traits().resumes == Resumes::nothing)
    say_by_order(content.catalog, inferred.by_order);
  return {};
}

// For a target with a file for each part.
Result<> check_one_of_each(const Catalog& catalog, const ConvertRequest& request) {
  const std::size_t models = catalog.parts.models.size();
  const std::size_t optimizers = catalog.parts.optimizers.size();
  if (request.to.traits().parts == Parts::found || (models <= 1 && optimizers <= 1)) return {};
  return Error{Code::unsupported,
               compose("{} has one model and one optimizer; these are {} and {}", request.to.name(),
                       models, optimizers),
               "--to dcp and --to torch keep all of them"};
}

// For a target that numbers parameters and counts the steps of the run.
Result<> check_numbered(const Checkpoint& source, const ConvertRequest& request, Catalog& catalog) {
  if (request.to.traits().params == Params::named) return {};
  EBB_TRY(check_order(catalog, request.to.name()));
  if (catalog.step) return {};
  EBB_TRY_ASSIGN(const auto counted, counted_steps(source));
  for (const auto& [name, steps] : counted)
    catalog.step = std::max(catalog.step.value_or(0), steps);
  return {};
}

}  // namespace

Result<std::map<std::string, std::int64_t>> counted_steps(const Checkpoint& source) {
  Catalog counted;
  counted.param_steps = source.catalog().param_steps;
  for (const TensorEntry& tensor : source.catalog().tensors)
    EBB_TRY(lift_step(source, tensor, tensor, counted));
  return std::move(counted.param_steps);
}

Result<Conversion> plan_conversion(const Checkpoint& source, const ConvertRequest& request) {
  if (request.world == 0) return Error{Code::usage, "a world of 0 ranks holds nothing"};
  const bool weights = request.taking == Taking::weights;
  EBB_TRY_ASSIGN(std::vector<std::string> unread, unread_in(source.catalog(), request));
  EBB_TRY_ASSIGN(Content content,
                 weights ? weights_content(source, request) : selected_content(source, request));
  take_composites(content.catalog);
  EBB_TRY(edit(request, content));
  EBB_TRY(settle_composites(request.to, content.catalog));
  EBB_TRY(check_block_states(request.to, content.catalog));
  auto& [catalog, made_of, changes, unsafe, names] = content;
  const Relation kin = relation_of(request.from, request.to);
  const bool crossing = kin == Relation::none;
  EBB_TRY(check_said_by_order(catalog, request));
  EBB_TRY(check_one_of_each(catalog, request));
  EBB_TRY(check_numbered(source, request, catalog));
  if (crossing || kin == Relation::parts || !is_state_dict(request.from))
    EBB_TRY(check_names(source.catalog(), request, content));
  if (crossing && is_state_dict(request.from)) {
    catalog.parts.tensor_settings = settings_in_tensors(source.catalog());
    if (!weights_only({catalog}) || catalog.parts.models.empty())
      put_parts(catalog, counters_in(source.catalog()));
    catalog.parts = {};
    for (TensorEntry& tensor : catalog.tensors) tensor.path.clear();
  }
  if (crossing && request.to.traits().steps == StepCounters::tensors)
    lower_steps(request.wanted, counters_for(request.to, catalog), catalog, made_of);
  if (crossing && is_state_dict(request.to)) move_to_tensors(catalog, made_of);
  if (weights && is_state_dict(request.to)) place_at_the_top(catalog.tensors);
  std::ranges::move(settle_ties(request.to, catalog, made_of), std::back_inserter(changes));
  if (weights || kin != Relation::same) request.to.respell(catalog);
  if (request.to.traits().resumes == Resumes::a_job && starts_anew(catalog))
    changes.emplace_back("weights only: a job that loads it starts a new optimizer");
  const bool may_move = crossing && is_state_dict(request.from);
  std::vector<MadeOf> kept = may_move ? made_of : std::vector<MadeOf>();
  EBB_TRY_ASSIGN(Conversion conversion,
                 laid_out(source, request, std::move(catalog), std::move(made_of)));
  const auto small = small_numbers(conversion.content->catalog(), conversion.plan.omitted);
  if (may_move && !small.empty()) {
    EBB_TRY_ASSIGN(Catalog moved, with_values(*conversion.content, small, kept));
    EBB_TRY_ASSIGN(conversion, laid_out(source, request, std::move(moved), std::move(kept)));
  }
  conversion.changes = std::move(changes);
  conversion.unsafe = std::move(unsafe);
  conversion.unread = std::move(unread);
  for (const auto* left : {&conversion.unsafe, &conversion.unread})
    conversion.plan.dropped.insert(conversion.plan.dropped.begin(), left->begin(), left->end());
  return conversion;
}

}  // namespace ebb::formats
