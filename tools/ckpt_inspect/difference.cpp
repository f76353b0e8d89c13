// --diff: what is not the same in two checkpoints.
#include <array>
#include <cmath>

#include "ebb/formats/catalog/resume.h"
#include "ebb/formats/core/json_text.h"
#include "tools/ckpt_inspect/compare.h"
#include "tools/ckpt_inspect/modes.h"
#include "tools/ckpt_inspect/renamed.h"
#include "tools/cli/checkpoints.h"
#include "tools/cli/text.h"

namespace ebb::tools::inspect {

using Kind = TensorDifference::Kind;

namespace {

const TensorEntry& shown_tensor(const TensorDifference& difference) {
  return *(difference.left != nullptr ? difference.left : difference.right);
}

std::string_view name_of_kind(Kind kind) {
  constexpr std::array<std::string_view, 5> kNames = {"only_left", "only_right", "shape", "dtype",
                                                      "values"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string values_text(const TensorDifference& difference) {
  const auto elements = formats::checked_volume(difference.left->shape).value_or(0);
  if (!difference.largest) return difference.differing == 0 ? "values equal" : "bits differ";
  return compose("{} of {}{}, first at {}, largest difference {}", count_text(difference.differing),
                 plural(elements, "element"), difference.differing == 1 ? " differs" : " differ",
                 formats::to_string(difference.first), significant(*difference.largest, 6));
}

// "w (param): F32 against BF16; 3 of 28 elements differ, first at [1, 2], largest difference 0.5"
std::string line_of(const TensorDifference& difference) {
  const TensorEntry& tensor = shown_tensor(difference);
  std::string out = compose("{} ({}): ", printable(tensor.name), printable(tensor.state, 40));
  switch (difference.kind) {
    case Kind::only_left:
      return out + "only on the left";
    case Kind::only_right:
      return out + "only on the right";
    case Kind::shape:
      return compose("{}{} against {}", out, formats::to_string(difference.left->shape),
                     formats::to_string(difference.right->shape));
    case Kind::dtype:
      return compose("{}{} against {}; {}", out, name_of(difference.left->dtype),
                     name_of(difference.right->dtype), values_text(difference));
    case Kind::values:
      break;
  }
  if (difference.derived) out += "not the other side's master rounded: ";
  return out + values_text(difference);
}

void write_side(JsonWriter& json, std::string_view name, const TensorEntry* tensor) {
  json.key(name);
  if (tensor == nullptr) {
    json.null();
    return;
  }
  json.open_object().put("state", tensor->state).put("dtype", name_of(tensor->dtype));
  json.put("shape", tensor->shape).close_object();
}

void write_difference(JsonWriter& json, const TensorDifference& difference) {
  json.open_object().put("name", shown_tensor(difference).name);
  json.put("kind", name_of_kind(difference.kind));
  write_side(json, "left", difference.left);
  write_side(json, "right", difference.right);
  json.put("differing_elements", difference.differing).put("first_index", difference.first);
  const bool finite = difference.largest && std::isfinite(*difference.largest);
  json.key("largest_difference").raw(finite ? shortest(*difference.largest) : "null");
  json.put("text", line_of(difference)).close_object();
}

std::string difference_json(const View& view, const View& other, const Comparison& comparison) {
  JsonWriter json;
  open_document(json, "diff");
  json.put("left", view.path).put("right", other.path).put("same", comparison.same());
  json.put("equal_tensors", comparison.equal_tensors).put("equal_bytes", comparison.equal_bytes);
  json.put("derived_tensors", comparison.derived);
  json.key("tensors").open_list();
  for (const TensorDifference& difference : comparison.tensors) write_difference(json, difference);
  json.close_list().put("values", comparison.values);
  json.put("values_in_both", comparison.values_in_both);
  json.put("values_only_left", comparison.values_only_left.size());
  json.put("values_only_right", comparison.values_only_right.size());
  json.put("unread_left", unread_of(view).size()).put("unread_right", unread_of(other).size());
  json.close_object();
  return json.take();
}

// What nobody compared, on either side.
std::string unread_sides(const View& left, const View& right) {
  std::string out;
  for (const auto& [view, side] : {std::pair(&left, "left"), std::pair(&right, "right")})
    if (const std::string line = unread_line(*view); !line.empty())
      out += compose("  not compared, on the {}: {}\n", side, line);
  return out;
}

struct OneSided {
  const std::vector<std::string>& keys;
  std::string_view side;
};
std::array<OneSided, 2> one_sided(const Comparison& comparison) {
  return {{{comparison.values_only_left, "left"}, {comparison.values_only_right, "right"}}};
}

std::string difference_text(const Console& console, const View& view, const View& other,
                            const Comparison& comparison) {
  const std::size_t total = comparison.tensors.size() + comparison.values.size();
  const std::size_t shown = shown_of(view, total, 20);
  std::string out;
  for (std::size_t i = 0; i < shown; ++i)
    out += "  " +
           (i < comparison.tensors.size() ? line_of(comparison.tensors[i])
                                          : comparison.values[i - comparison.tensors.size()]) +
           "\n";
  out += left_out(shown, total);
  out += comparison.same() ? console.good("same") + ": "
                           : console.bad(plural(total, "difference")) + "; ";
  out += compose("{} ({}) equal bit for bit, {} compared\n",
                 plural(comparison.equal_tensors, "tensor"), bytes_text(comparison.equal_bytes),
                 plural(comparison.values_in_both, "value"));
  if (comparison.derived != 0)
    out += compose(
        "  of those tensors {} stored on one side alone: rounded, the other's master "
        "weights are the same\n",
        comparison.derived == 1 ? "1 is" : compose("{} are", count_text(comparison.derived)));
  if (view.catalog().format == other.catalog().format) return out + unread_sides(view, other);
  for (const auto& [keys, side] : one_sided(comparison))
    if (!keys.empty())
      out += compose("  not compared, only on the {}: {} ({})\n", side,
                     plural(keys.size(), "value"), formats::some_of(keys));
  return out + unread_sides(view, other);
}

// Another format may not be able to hold a value; the same one lost it.
void add_one_sided(Comparison& comparison) {
  for (const auto& [keys, side] : one_sided(comparison))
    for (const std::string& key : keys)
      comparison.values.push_back(compose("value {}: only on the {}", printable(key), side));
}

struct Shown {
  const View& left;
  const View& right;
};

Result<Exit> show_sides(Console& console, const Shown& shown, const Side& left, const Side& right) {
  EBB_TRY_ASSIGN(const auto left_before, libswap::FileStates::below(shown.left.path));
  EBB_TRY_ASSIGN(const auto right_before, libswap::FileStates::below(shown.right.path));
  Comparison comparison;
  for (const Match& match : match_tensors(left, right)) {
    EBB_TRY_ASSIGN(const auto difference, compare_tensors(left, right, match));
    if (difference) {
      comparison.tensors.push_back(*difference);
    } else {
      ++comparison.equal_tensors;
      comparison.derived += match.master != nullptr ? 1 : 0;
      comparison.equal_bytes += bytes_of(match.left != nullptr ? *match.left : *match.right);
    }
  }
  const bool everything =
      shown.left.selection.include.empty() && shown.left.selection.states.empty();
  if (everything) EBB_TRY(compare_values(left, right, comparison));
  if (left.catalog().format == right.catalog().format) add_one_sided(comparison);
  EBB_TRY(check_unchanged(shown.left.catalog(), left_before));
  EBB_TRY(check_unchanged(shown.right.catalog(), right_before));
  console.print(shown.left.output == Output::json
                    ? difference_json(shown.left, shown.right, comparison)
                    : difference_text(console, shown.left, shown.right, comparison));
  if (!comparison.same()) return Exit::different;
  const bool all_read = unread_of(shown.left).empty() && unread_of(shown.right).empty();
  return all_read ? Exit::success : Exit::unsupported;
}

}  // namespace

Result<Exit> show_difference(Console& console, const View& view, const View& other) {
  if (view.catalog().format == other.catalog().format)
    return show_sides(console, {view, other}, {view.checkpoint, view.tensors},
                      {other.checkpoint, other.tensors});
  const Naming naming = naming_for(view.catalog(), other.catalog());
  const Renamed left(view.checkpoint, naming), right(other.checkpoint, naming);
  return show_sides(console, {view, other}, {left, left.here(view.tensors)},
                    {right, right.here(other.tensors)});
}

}  // namespace ebb::tools::inspect
