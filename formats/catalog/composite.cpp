#include "ebb/formats/catalog/composite.h"

#include <algorithm>
#include <iterator>

#include "ebb/formats/catalog/key_path.h"
#include "ebb/formats/catalog/resume.h"
#include "ebb/formats/catalog/value_json.h"
#include "ebb/formats/core/check.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/number_text.h"

namespace ebb::formats {
namespace {

std::string_view last_word(std::string_view name) { return name.substr(name.rfind('.') + 1); }

// Numbers alone: what a class keeps of a tensor's shape or for a job is none of a note.
std::string settings_text(const Composite& whole) {
  std::string out;
  for (const auto& [name, value] : whole.settings) {
    const bool extents = value.kind == Value::Kind::list || value.kind == Value::Kind::tuple;
    if (value.kind != Value::Kind::integer && !(extents && name == "block_size")) continue;
    out += compose("{}{} {}", out.empty() ? "; " : ", ", printable(name, 40),
                   extents ? to_json(Value::of_list(value.items)) : to_json(value));
  }
  return out;
}

void place(TensorEntry& part, const TensorEntry& whole) {
  const std::string& word = part.part_of->part;
  const bool weight = is_weight(whole.state);
  part.name = weight ? compose("{}.{}", whole.name, word) : whole.name;
  part.state = weight ? whole.state : compose("{}.{}", whole.state, word);
  if (whole.key) part.key = compose("{}.{}", *whole.key, word);
  part.path = whole.path;
  if (!whole.path.empty()) part.path.emplace_back(word);
}

// Takes the part's word off the end of a name; false: it was not there.
bool take_off(std::string& name, const std::string& word) {
  const std::string end = "." + word;
  if (!name.ends_with(end)) return false;
  name.resize(name.size() - end.size());
  return true;
}

std::vector<std::string> notes_about(const Catalog& catalog) {
  std::map<std::pair<std::string_view, std::string>, std::size_t> kinds;  // class and how
  std::map<const Composite*, std::string> stored;
  for (const TensorEntry& tensor : catalog.tensors) {
    if (tensor.part_of == nullptr) continue;
    std::string& parts = stored[tensor.part_of->whole.get()];
    parts += compose("{}{} {}", parts.empty() ? "" : ", ", printable(tensor.part_of->part, 40),
                     name_of(tensor.dtype));
  }
  for (const TensorEntry& tensor : catalog.tensors) {
    const auto parts =
        tensor.part_of ? stored.extract(tensor.part_of->whole.get()) : decltype(stored)::node_type();
    if (parts.empty()) continue;
    const Composite& whole = *parts.key();
    std::string how = compose("{} kept as {}{}", name_of(whole.dtype), parts.mapped(),
                              settings_text(whole));
    ++kinds[{whole.type, std::move(how)}];
  }
  std::vector<std::string> notes;
  for (const auto& [what, count] : kinds)
    notes.push_back(
        compose("{} of {}: {}", plural(count, "tensor"), class_text(what.first), what.second));
  return notes;
}

}  // namespace

std::string class_text(std::string_view type) {
  return compose("the class {} ({})", printable(last_word(type), 80),
                 printable(type.substr(0, type.find('.')), 80));
}

void stand_for(const std::vector<TensorEntry>& parts, TensorEntry& entry) {
  const auto& whole = parts.front().part_of->whole;
  entry.dtype = whole->dtype;
  entry.shape = whole->shape;
  entry.part_of = std::make_shared<const PartOf>(PartOf{whole, ""});
}

void unfold(Catalog& catalog, PartsOf parts) {
  if (parts.empty()) return;
  std::vector<TensorEntry> all;
  for (TensorEntry& tensor : catalog.tensors) {
    if (tensor.part_of == nullptr) {
      all.push_back(std::move(tensor));
      continue;
    }
    const auto its = parts.find(tensor.part_of->whole.get());
    EBB_CHECK(its != parts.end());
    for (TensorEntry& part : its->second) {
      place(part, tensor);
      all.push_back(std::move(part));
    }
  }
  catalog.tensors = std::move(all);
  std::ranges::move(notes_about(catalog), std::back_inserter(catalog.notes));
}

TensorEntry whole_of(const TensorEntry& part) {
  const auto& [composite, word] = *part.part_of;
  TensorEntry whole;
  whole.key = part.key;
  if (whole.key) take_off(*whole.key, word);
  whole.path = part.path;
  if (!whole.path.empty() && is_word(whole.path.back(), word)) whole.path.pop_back();
  whole.name = part.name;
  whole.state = part.state;
  if (!take_off(whole.state, word)) take_off(whole.name, word);
  whole.dtype = composite->dtype;
  whole.shape = composite->shape;
  whole.part_of = std::make_shared<const PartOf>(PartOf{composite, ""});
  return whole;
}

}  // namespace ebb::formats
