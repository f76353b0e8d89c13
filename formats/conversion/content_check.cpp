#include "ebb/formats/conversion/content_check.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string_view>

#include "ebb/formats/catalog/key_path.h"
#include "ebb/formats/catalog/value_alike.h"
#include "ebb/formats/core/json_text.h"

namespace ebb::formats {

namespace {

constexpr std::size_t kShown = 60;  // bytes of a value in a message

class ContentCheck {
 public:
  ContentCheck(const Catalog& content, const EmitPlan& plan, const Catalog& written)
      : content_(content),
        plan_(plan),
        written_(written),
        one_format_(content.format == written.format) {
    const std::set<std::uint32_t> omitted(plan.omitted.begin(), plan.omitted.end());
    for (std::uint32_t i = 0; i < content.tensors.size(); ++i)
      if (!omitted.contains(i)) stored_names_.insert(content.tensors[i].name);
  }

  std::vector<std::string> run() {
    if (content_.step) check_step();
    check_values();
    for (std::size_t i = 0; i < content_.groups.size(); ++i) check_group(i);
    if (plan_.groups_have_order) check_order_of_groups();
    check_param_steps();
    return std::move(lost_);
  }

 private:
  bool is_dropped(std::string_view key) const {
    const std::string double_quoted = json_string(key);
    const std::string quoted = "'" + printable(key) + "'";
    return std::ranges::any_of(plan_.dropped, [&](const std::string& line) {
      return line.find(double_quoted) != std::string::npos ||
             line.find(quoted) != std::string::npos;
    });
  }

  static bool has_line_of(const std::vector<std::string>& lines, const std::string& beginning) {
    return std::ranges::any_of(
        lines, [&](const std::string& line) { return line.starts_with(beginning); });
  }
  bool drops_line_of(const std::string& beginning) const {
    return has_line_of(plan_.dropped, beginning);
  }

  bool same(const Value& wanted, const Value& found) const {
    return one_format_ ? to_json(wanted) == to_json(found) : alike(wanted, found);
  }

  void missing(const std::string& what) { lost_.push_back(what + " is missing"); }
  void differs(const std::string& what, const std::string& wanted, const std::string& found) {
    lost_.push_back(
        compose("{} is {}, not {}", what, printable(found, kShown), printable(wanted, kShown)));
  }

  void check_step() {
    if (is_dropped("step")) return;
    if (!written_.step)
      missing(compose("step {}", *content_.step));
    else if (*written_.step != *content_.step)
      differs("step", std::to_string(*content_.step), std::to_string(*written_.step));
  }

  void check_values() {
    for (const ValueEntry& entry : written_.values) found_.emplace(entry.key, &entry.value);
    for (const ContainerEntry& entry : written_.containers) containers_.insert(joined(entry.path));
    const std::set<std::string_view> rewritten(plan_.rewritten.begin(), plan_.rewritten.end());
    for (const ValueEntry& entry : content_.values) {
      // What echoes the groups and steps is compared there.
      if (entry.echoed || rewritten.contains(entry.key) || is_dropped(entry.key)) continue;
      check_value(entry.key, entry.value);
    }
  }

  // As a whole, or item by item: formats differ in how deep into a value they still give keys.
  void check_value(const std::string& key, const Value& wanted) {
    const std::string what = "value '" + printable(key) + "'";
    if (const auto found = found_.find(key); found != found_.end()) {
      if (!same(wanted, *found->second)) differs(what, to_json(wanted), to_json(*found->second));
    } else if (wanted.kind == Value::Kind::dict && !wanted.entries.empty()) {
      for (const auto& [name, value] : wanted.entries)
        check_value(key + "." + key_text(name), value);
    } else if (is_sequence(wanted) && !wanted.items.empty()) {
      for (std::size_t i = 0; i < wanted.items.size(); ++i)
        check_value(compose("{}.{}", key, i), wanted.items[i]);
    } else if (!is_there_as_another_kind(key, wanted)) {
      missing(what);
    }
  }

  // An empty dict or list leaves only its place; a tensor in a value may come back as a tensor.
  bool is_there_as_another_kind(const std::string& key, const Value& wanted) const {
    if (wanted.kind == Value::Kind::dict || is_sequence(wanted)) return containers_.contains(key);
    return wanted.kind == Value::Kind::tensor &&
           std::ranges::any_of(written_.tensors, [&](const TensorEntry& tensor) {
             return tensor.key == key && tensor.dtype == wanted.dtype &&
                    tensor.shape.size() == wanted.items.size();
           });
  }

  static bool has_no_names(const GroupEntry& group) { return group.params.empty(); }

  // What an optimizer only numbers is named by the states and the model beside it: where a part of
  // those is left, the number stays, "optimizer.3".
  static bool is_number(std::string_view name) {
    const std::string_view last = name.substr(name.rfind('.') + 1);
    return !last.empty() && last.find_first_not_of("0123456789") == std::string_view::npos;
  }
  bool is_there_as_number(const GroupEntry& found, const GroupEntry& wanted, std::size_t i) const {
    return !written_.parts.optimizers.empty() && found.params.size() == wanted.params.size() &&
           is_number(found.params[i]);
  }

  static bool numbers_all(const GroupEntry& found, const GroupEntry& wanted) {
    return found.params.size() == wanted.params.size() &&
           std::ranges::all_of(found.params, is_number);
  }

  bool has_settings(const GroupEntry& found, const GroupEntry& wanted) const {
    return std::ranges::all_of(wanted.settings, [&](const auto& setting) {
      return std::ranges::any_of(found.settings, [&](const auto& other) {
        return other.first == setting.first && same(setting.second, other.second);
      });
    });
  }

  // One that shares a parameter; without names in the content, the one of that number; one without
  // parameters beside others, the one that has its settings, or comes at its place among such.
  const GroupEntry* written_group(std::size_t number) const {
    const GroupEntry& wanted = content_.groups[number];
    if (!has_no_names(wanted)) {
      if (const auto* found = group_sharing(written_.groups, wanted, number)) return found;
      if (number < written_.groups.size() && numbers_all(written_.groups[number], wanted))
        return &written_.groups[number];
      for (const GroupEntry& group : written_.groups)
        if (numbers_all(group, wanted) && has_settings(group, wanted)) return &group;
      return nullptr;
    }
    if (!list_params(content_.groups))
      return number < written_.groups.size() ? &written_.groups[number] : nullptr;
    for (const GroupEntry& group : written_.groups)
      if (has_no_names(group) && group.optimizer == wanted.optimizer && has_settings(group, wanted))
        return &group;
    auto before =
        std::count_if(content_.groups.begin(),
                      content_.groups.begin() + static_cast<std::ptrdiff_t>(number), has_no_names);
    for (const GroupEntry& group : written_.groups)
      if (has_no_names(group) && before-- == 0) return &group;
    return nullptr;
  }

  bool is_stored(const GroupEntry& group) const {
    return std::ranges::any_of(group.params,
                               [&](const auto& name) { return stored_names_.contains(name); });
  }

  // A group's name in front of a line about all of it. One without parameters is left out with a
  // note, and whose one is may follow from states that are left out.
  bool is_spoken_of(std::size_t number) const {
    const std::string beginning = compose("parameter group {} ", number);
    return drops_line_of(beginning) || has_line_of(plan_.notes, beginning);
  }

  // Within a format all that is recorded of an optimizer is compared as settings; its name may have
  // been told by states that are left out.
  bool was_told(const GroupEntry& found) const { return one_format_ && found.optimizer.empty(); }

  void check_group(std::size_t number) {
    const std::string what = compose("parameter group {}", number);
    if (is_spoken_of(number)) return;
    const GroupEntry& wanted = content_.groups[number];
    const GroupEntry* found = written_group(number);
    if (found == nullptr) {
      if (wanted.params.empty() || is_stored(wanted)) missing(what);
      return;
    }
    if (!wanted.optimizer.empty() && wanted.optimizer != found->optimizer && !was_told(*found))
      differs(what + ": optimizer", wanted.optimizer, found->optimizer);
    for (const auto& [name, value] : wanted.settings) check_setting(what, name, value, *found);
    const std::set<std::string_view> params(found->params.begin(), found->params.end());
    for (std::size_t i = 0; i < wanted.params.size(); ++i) {
      const std::string& name = wanted.params[i];
      if (stored_names_.contains(name) && !params.contains(name) && !is_dropped(name) &&
          !is_there_as_number(*found, wanted, i))
        missing(compose("{}: parameter '{}'", what, printable(name)));
    }
  }

  // Whose a group is: the optimizer of a state dict that has its first parameter.
  auto optimizer_of(const GroupEntry& group) const {
    return std::ranges::find_if(written_.parts.optimizers, [&](const StateDictOptimizer& one) {
      return !group.params.empty() &&
             std::ranges::find(one.params, group.params.front()) != one.params.end();
    });
  }
  bool of_two_optimizers(const GroupEntry& a, const GroupEntry& b) const {
    return optimizer_of(a) != optimizer_of(b);
  }

  // Most frameworks load the groups of an optimizer by their position.
  void check_order_of_groups() {
    std::vector<std::uint32_t> order = plan_.group_order;
    if (order.empty()) {
      order.resize(content_.groups.size());
      std::iota(order.begin(), order.end(), 0);
    }
    std::optional<std::pair<std::uint32_t, const GroupEntry*>> last;
    for (const std::uint32_t number : order) {
      const GroupEntry* found =
          is_stored(content_.groups[number]) ? written_group(number) : nullptr;
      if (found == nullptr) continue;
      if (last && found < last->second && !of_two_optimizers(*found, *last->second))
        lost_.push_back(compose("parameter group {} comes before group {}", number, last->first));
      last = {number, found};
    }
  }

  void check_setting(const std::string& group, const std::string& name, const Value& value,
                     const GroupEntry& found) {
    if (is_dropped(name) || is_counter(name, value, found)) return;
    const std::string what = compose("{}: setting '{}'", group, printable(name));
    const auto other = std::ranges::find_if(
        found.settings, [&](const auto& setting) { return setting.first == name; });
    if (other == found.settings.end())
      missing(what);
    else if (!same(value, other->second))
      differs(what, to_json(value), to_json(other->second));
  }

  // A "step" of the group beside counters of its parameters: other formats have one place for both,
  // and the parameters' own are the ones that count.
  bool is_counter(const std::string& name, const Value& value, const GroupEntry& found) const {
    return name == "step" && number_in(value) && !one_format_ &&
           std::ranges::any_of(found.params, [&](const auto& param) {
             return written_.param_steps.contains(param);
           });
  }

  void check_param_steps() {
    if (content_.param_steps.empty() || drops_line_of("the steps of ")) return;
    const std::map<std::string_view, std::string_view> numbers = numbers_of_names();
    for (const auto& [name, steps] : content_.param_steps) {
      if (is_dropped(name) || !stored_names_.contains(name)) continue;
      auto found = written_.param_steps.find(name);
      const auto number = numbers.find(name);
      if (found == written_.param_steps.end() && number != numbers.end()) {
        if (number->second.empty()) continue;
        found = written_.param_steps.find(std::string(number->second));
      }
      const std::string what = "the steps of '" + printable(name) + "'";
      if (found == written_.param_steps.end())
        missing(what);
      else if (found->second != steps)
        differs(what, std::to_string(steps), std::to_string(found->second));
    }
  }

  // What parameters are called in what was written, where that is a number; "": their group's
  // steps are there, and nothing tells whose they are.
  std::map<std::string_view, std::string_view> numbers_of_names() const {
    std::map<std::string_view, std::string_view> numbers;
    for (std::size_t g = 0; g < content_.groups.size(); ++g) {
      const GroupEntry& wanted = content_.groups[g];
      const bool told = is_spoken_of(g);
      const GroupEntry* found = told ? nullptr : written_group(g);
      for (std::size_t i = 0; i < wanted.params.size(); ++i)
        if (told)
          numbers.emplace(wanted.params[i], std::string_view());
        else if (found != nullptr && is_there_as_number(*found, wanted, i))
          numbers.emplace(wanted.params[i], found->params[i]);
    }
    return numbers;
  }

  const Catalog& content_;
  const EmitPlan& plan_;
  const Catalog& written_;
  bool one_format_ = false;
  std::set<std::string_view> stored_names_;
  std::map<std::string_view, const Value*> found_;  // what was written
  std::set<std::string> containers_;
  std::vector<std::string> lost_;
};

}  // namespace

std::vector<std::string> lost_content(const Catalog& content, const EmitPlan& plan,
                                      const Catalog& written) {
  return ContentCheck(content, plan, written).run();
}

}  // namespace ebb::formats
