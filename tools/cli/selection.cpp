#include "tools/cli/selection.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "ebb/formats/catalog/composite.h"
#include "ebb/formats/conversion/glob.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/nearest.h"
#include "ebb/formats/core/units.h"
#include "tools/cli/arguments.h"
#include "tools/cli/text.h"

namespace ebb::tools {

namespace {

// "", or the name that is most like the one that was asked for.
std::string nearest_hint(const Catalog& catalog, const Selection& selection) {
  if (selection.include.size() != 1) return {};
  std::set<std::string> names;
  for (const TensorEntry& tensor : catalog.tensors) names.insert(tensor.name);
  const auto near = formats::nearest(selection.include.front(), {names.begin(), names.end()});
  return near ? "did you mean " + printable(*near, 200) + "?" : "";
}

// What there is instead, where a state was asked for that nothing has.
std::string hint_for(const Catalog& catalog, const Selection& selection) {
  std::set<std::string_view> states;
  for (const TensorEntry& tensor : catalog.tensors) states.insert(tensor.state);
  if (std::ranges::all_of(selection.states, [&](const auto& s) { return states.contains(s); })) {
    const std::string near = nearest_hint(catalog, selection);
    return near.empty() ? "ckpt-inspect CKPT --tensors lists names, states and keys" : near;
  }
  std::string hint = "states here:";
  if (states.erase("param") != 0) hint += " param,";
  for (const std::string_view state : states) hint += " " + printable(state, 40) + ",";
  hint.pop_back();
  return hint;
}

std::vector<const TensorEntry*> in_natural_order(const std::vector<const TensorEntry*>& tensors) {
  struct Keyed {
    std::string_view name;
    const TensorEntry* tensor;
    auto order() const {
      return std::tuple(name, std::string_view(tensor->name), tensor->state != "param",
                        std::string_view(tensor->state));
    }
    bool operator<(const Keyed& other) const { return order() < other.order(); }
  };
  std::string names;  // the keys of all, one after the other
  std::vector<std::size_t> ends;
  ends.reserve(tensors.size());
  for (const TensorEntry* tensor : tensors) {
    append_natural_key(names, tensor->name);
    ends.push_back(names.size());
  }
  std::vector<Keyed> keyed;
  keyed.reserve(tensors.size());
  for (std::size_t i = 0, first = 0; i < tensors.size(); first = ends[i++])
    keyed.push_back({std::string_view(names).substr(first, ends[i] - first), tensors[i]});
  if (!std::is_sorted(keyed.begin(), keyed.end())) std::stable_sort(keyed.begin(), keyed.end());
  std::vector<const TensorEntry*> sorted;
  sorted.reserve(keyed.size());
  for (const Keyed& one : keyed) sorted.push_back(one.tensor);
  return sorted;
}

}  // namespace

bool Selection::wants(const TensorEntry& tensor) const {
  // A part is called by its own name, or by that of the whole.
  std::optional<TensorEntry> whole;
  if (tensor.part_of != nullptr) whole = formats::whole_of(tensor);
  const auto is_called = [](const std::string& glob, const TensorEntry& one) {
    return formats::glob_match(glob, one.name) || (one.key && formats::glob_match(glob, *one.key));
  };
  const auto matches = [&](const std::string& glob) {
    return is_called(glob, tensor) || (whole && is_called(glob, *whole));
  };
  const auto is_state = [&](const std::string& state) {
    return state == tensor.state || (whole && state == whole->state);
  };
  if (!include.empty() && std::ranges::none_of(include, matches)) return false;
  if (std::ranges::any_of(exclude, matches)) return false;
  if (!states.empty() && std::ranges::none_of(states, is_state)) return false;
  return !rank || std::ranges::find(tensor.chunks, *rank, &Chunk::holder) != tensor.chunks.end();
}

bool Selection::wants(const formats::UnreadEntry& unread) const {
  return wants(formats::as_tensor(unread));
}

Result<std::vector<const TensorEntry*>> select(const Catalog& catalog, const Selection& selection) {
  std::vector<const TensorEntry*> chosen;
  for (const TensorEntry& tensor : catalog.tensors)
    if (selection.wants(tensor)) chosen.push_back(&tensor);
  const bool unread = std::ranges::any_of(
      catalog.unread, [&](const formats::UnreadEntry& entry) { return selection.wants(entry); });
  if (chosen.empty() && !catalog.tensors.empty() && !unread)
    return Error{
        Code::usage,
        compose("none of the {} matches{}", plural(catalog.tensors.size(), "tensor"),
                selection.include.empty() ? ""
                                          : " '" + printable(selection.include.front(), 200) + "'"),
        hint_for(catalog, selection)};
  return in_natural_order(chosen);
}

std::uint64_t elements_of(const TensorEntry& tensor) {
  return formats::checked_volume(tensor.shape).value_or(0);
}

std::uint64_t bytes_of(const TensorEntry& tensor) {
  const auto bits = formats::checked_mul(elements_of(tensor), formats::bits_of(tensor.dtype));
  return formats::div_ceil(bits.value_or(0), 8);
}

std::uint64_t elements_of(const TensorEntry& tensor, const Selection& selection) {
  if (!selection.rank) return elements_of(tensor);
  std::uint64_t elements = 0;
  for (const Chunk& chunk : tensor.chunks)
    if (chunk.holder == *selection.rank)
      elements += formats::checked_volume(chunk.box.extent).value_or(0);
  return elements;
}

std::uint64_t bytes_of(const TensorEntry& tensor, const Selection& selection) {
  const auto elements = elements_of(tensor, selection);
  return formats::packed_bytes(tensor.dtype, elements).value_or(0);
}

}  // namespace ebb::tools
