#include "ebb/formats/conversion/edits.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <tuple>

#include "ebb/formats/catalog/composite.h"
#include "ebb/formats/catalog/renaming.h"
#include "ebb/formats/conversion/glob.h"
#include "ebb/formats/core/float_cast.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/state_dict/numbers.h"
#include "ebb/formats/state_dict/small_tensors.h"

namespace ebb::formats {

namespace {

using NewNames = std::map<std::string, std::string>;  // old -> new

std::optional<DType> floating_named(std::string_view text) {
  constexpr std::array<std::pair<std::string_view, DType>, 11> kWords = {
      {{"f64", DType::f64},
       {"fp64", DType::f64},
       {"float64", DType::f64},
       {"f32", DType::f32},
       {"fp32", DType::f32},
       {"float32", DType::f32},
       {"f16", DType::f16},
       {"fp16", DType::f16},
       {"float16", DType::f16},
       {"bf16", DType::bf16},
       {"bfloat16", DType::bf16}}};
  for (const auto& [word, dtype] : kWords)
    if (word == text) return dtype;
  return std::nullopt;
}

// What says how Megatron's files are laid out, and not what is in them.
bool is_layout(const ValueEntry& value) {
  return value.path == std::vector<PathItem>{"common", "content_metadata"} ||
         value.path == std::vector<PathItem>{"common", "version"};
}

void drop_echoes(Catalog& content) {
  std::erase_if(content.values,
                [](const auto& value) { return value.echoed && !is_layout(value); });
}

// Renames what is exactly an old name: dict keys, dict values and items.
void rename_inside(Value& value, const NewNames& names) {
  if (value.kind == Value::Kind::string)
    if (const auto fresh = names.find(value.text); fresh != names.end()) value.text = fresh->second;
  for (Value& item : value.items) rename_inside(item, names);
  for (auto& [key, item] : value.entries) {
    rename_inside(key, names);
    rename_inside(item, names);
  }
}

void rename_value(ValueEntry& entry, const NewNames& names) {
  // What formats say about parameters by name; elsewhere text is text.
  constexpr std::string_view kAboutNames[] = {"tied", "buffer_names", "shared_params"};
  if (std::ranges::find(kAboutNames, entry.key) != std::end(kAboutNames))
    rename_inside(entry.value, names);
  for (PathItem& item : entry.path) {
    auto* text = std::get_if<std::string>(&item);
    if (text == nullptr || entry.path.size() < 2) continue;
    const auto fresh = names.find(*text);
    if (fresh == names.end()) continue;
    if (const std::size_t at = entry.key.find(*text); at != std::string::npos)
      entry.key.replace(at, text->size(), fresh->second);
    *text = fresh->second;
  }
}

Result<std::vector<std::string>> cast_all(const DTypeRules& rules, Catalog& content) {
  std::vector<bool> used(rules.size(), false);
  std::map<std::tuple<std::string, DType, DType>, std::uint64_t> casts;  // state, from, to
  for (TensorEntry& tensor : content.tensors) {
    const auto rule = rules.rule_for(tensor);
    if (!rule || !is_floating(tensor.dtype) || is_setting(tensor) || tensor.part_of) continue;
    used[*rule] = true;
    const DType to = rules.dtype(*rule);
    if (to == tensor.dtype) continue;
    ++casts[{tensor.state, tensor.dtype, to}];
    tensor.dtype = to;
  }
  for (std::size_t i = 0; i < rules.size(); ++i)
    if (!used[i])
      return Error{Code::usage,
                   "dtype rule '" + printable(rules.text(i)) + "' fits no floating tensor",
                   "ckpt-inspect CKPT --tensors lists states and names"};
  std::vector<std::string> lines;
  for (const auto& [cast, count] : casts) {
    const auto& [state, from, to] = cast;
    lines.push_back(compose("casts {} tensors ({}) from {} to {}{}", count, printable(state, 40),
                            name_of(from), name_of(to),
                            (is_widening(from, to) ? ", exact" : ", rounded to nearest: lossy")));
  }
  if (lines.empty()) lines.emplace_back("casts nothing: every dtype is as asked for already");
  return lines;
}

Result<std::vector<std::string>> rename_tensors(const RenameRules& rules, Catalog& content) {
  std::set<std::string> names;
  for (const TensorEntry& tensor : content.tensors) names.insert(tensor.name);
  for (const GroupEntry& group : content.groups)
    names.insert(group.params.begin(), group.params.end());
  for (const auto& [name, steps] : content.param_steps) names.insert(name);
  // A state may join its parameter; two tensors of one state may not become one.
  std::map<std::string_view, std::set<std::string_view>> states;
  for (const TensorEntry& tensor : content.tensors) states[tensor.name].insert(tensor.state);
  const auto may_join = [&](const std::string& a, const std::string& b) {
    return std::ranges::none_of(states[a],
                                [&](std::string_view state) { return states[b].contains(state); });
  };
  EBB_TRY_ASSIGN(const NewNames fresh, rules.apply(names, may_join));
  rename_to(fresh, content);
  return std::vector<std::string>{compose("renames {} of {} names", fresh.size(), names.size())};
}

}  // namespace

Result<DTypeRules> DTypeRules::parse(std::span<const std::string> texts) {
  DTypeRules rules;
  for (std::string_view text : texts) {
    while (!text.empty()) {
      const std::size_t end = std::min(text.find(','), text.size());
      const std::string_view rule = text.substr(0, end);
      text.remove_prefix(std::min(end + 1, text.size()));
      if (rule.empty()) continue;
      const std::size_t equals = rule.rfind('=');
      const bool bare = equals == std::string_view::npos;
      const auto dtype = floating_named(bare ? rule : rule.substr(equals + 1));
      if (!dtype || equals == 0)
        return Error{Code::usage,
                     "dtype rule '" + printable(rule) + "' is neither DTYPE nor PATTERN=DTYPE",
                     "dtypes are f64, f32, f16 and bf16, as in --dtype param=bf16"};
      rules.rules_.push_back(
          {std::string(rule), std::string(bare ? "" : rule.substr(0, equals)), *dtype});
    }
  }
  std::ranges::stable_sort(rules.rules_, {}, [](const Rule& rule) { return rule.pattern.empty(); });
  return rules;
}

std::optional<std::size_t> DTypeRules::rule_for(const TensorEntry& tensor) const {
  for (std::size_t i = 0; i < rules_.size(); ++i) {
    const std::string& pattern = rules_[i].pattern;
    const bool fits = pattern.empty()
                          ? tensor.state != "step"
                          : glob_match(pattern, tensor.state) || glob_match(pattern, tensor.name);
    if (fits) return i;
  }
  return std::nullopt;
}

Result<std::vector<std::string>> apply_edits(const Edits& edits, Catalog& content,
                                             std::vector<MadeOf>& made_of) {
  std::vector<std::string> lines;
  const auto add = [&](std::vector<std::string> more) {
    lines.insert(lines.end(), more.begin(), more.end());
  };
  if (!edits.dtypes.empty()) {
    EBB_TRY_ASSIGN(auto changes, cast_all(edits.dtypes, content));
    add(std::move(changes));
  }
  if (edits.momentum) {
    EBB_TRY_ASSIGN(auto changes, change_momentum(*edits.momentum, content, made_of));
    drop_echoes(content);
    add(std::move(changes));
  }
  if (!edits.rename.empty()) {
    EBB_TRY_ASSIGN(auto changes, rename_all(edits.rename, content));
    add(std::move(changes));
  }
  return lines;
}

void rename_to(const NewNames& names, Catalog& content) {
  const auto rename = [&](std::string& name) {
    const auto found = names.find(name);
    if (found == names.end()) return false;
    name = found->second;
    return true;
  };
  for (TensorEntry& tensor : content.tensors) {
    // A number in its key stays: whoever loads it counts parameters, whatever they are called.
    if (!rename(tensor.name) || place_of_number(tensor)) continue;
    tensor.key.reset();
    tensor.path.clear();
  }
  rename_beside_tensors(content, rename);
  for (StateDictOptimizer& optimizer : content.parts.optimizers)
    for (std::string& name : optimizer.params) rename(name);
  drop_echoes(content);
  for (ValueEntry& entry : content.values) rename_value(entry, names);
}

Result<std::vector<std::string>> rename_all(const RenameRules& rules, Catalog& content) {
  Result<std::vector<std::string>> lines = std::vector<std::string>();
  change_wholes(content, [&](Catalog& wholes) { lines = rename_tensors(rules, wholes); });
  return lines;
}

}  // namespace ebb::formats
