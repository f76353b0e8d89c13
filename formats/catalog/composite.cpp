#include "ebb/formats/catalog/composite.h"

#include <algorithm>
#include <iterator>
#include <tuple>

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
  std::tie(part.name, part.state) = part_name(whole, word);
  part.key = whole.key ? std::optional(compose("{}.{}", *whole.key, word)) : std::nullopt;
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

// A place of its own below the whole's, or one whose last word has it at its end.
void take_off(std::vector<PathItem>& path, const std::string& word) {
  if (is_word(path.back(), word)) return path.pop_back();
  if (auto* text = std::get_if<std::string>(&path.back())) take_off(*text, word);
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
    const auto parts = tensor.part_of ? stored.extract(tensor.part_of->whole.get())
                                      : decltype(stored)::node_type();
    if (parts.empty()) continue;
    const Composite& whole = *parts.key();
    std::string how =
        compose("{} kept as {}{}", name_of(whole.dtype), parts.mapped(), settings_text(whole));
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

std::pair<std::string, std::string> part_name(const TensorEntry& whole, std::string_view part) {
  if (is_weight(whole.state)) return {compose("{}.{}", whole.name, part), whole.state};
  return {whole.name, compose("{}.{}", whole.state, part)};
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
}

void change_wholes(Catalog& catalog, const std::function<void(Catalog&)>& change) {
  const auto is_part = [](const TensorEntry& tensor) { return tensor.part_of != nullptr; };
  if (std::ranges::none_of(catalog.tensors, is_part)) return change(catalog);
  std::vector<TensorEntry> folded;
  std::vector<std::vector<std::size_t>> numbers;  // of the tensors that each of those stands for
  std::map<const Composite*, std::size_t> known;
  PartsOf parts;
  for (std::size_t i = 0; i < catalog.tensors.size(); ++i) {
    TensorEntry& tensor = catalog.tensors[i];
    if (!is_part(tensor)) {
      folded.push_back(std::move(tensor));
      numbers.push_back({i});
      continue;
    }
    const Composite* const whole = tensor.part_of->whole.get();
    const auto [at, fresh] = known.try_emplace(whole, folded.size());
    if (fresh) {
      folded.push_back(whole_of(tensor));
      numbers.emplace_back();
    }
    numbers[at->second].push_back(i);
    parts[whole].push_back(std::move(tensor));
  }
  catalog.tensors = std::move(folded);
  change(catalog);
  unfold(catalog, std::move(parts));
  std::vector<TensorEntry> ordered(catalog.tensors.size());
  std::size_t next = 0;
  for (const std::vector<std::size_t>& of_one : numbers)
    for (const std::size_t number : of_one) ordered[number] = std::move(catalog.tensors[next++]);
  catalog.tensors = std::move(ordered);
}

void note_composites(Catalog& catalog) {
  std::ranges::move(notes_about(catalog), std::back_inserter(catalog.notes));
}

const Shape& shape_of_whole(const TensorEntry& tensor) {
  return tensor.part_of == nullptr ? tensor.shape : tensor.part_of->whole->shape;
}

TensorEntry whole_of(const TensorEntry& part) {
  const auto& [composite, word] = *part.part_of;
  TensorEntry whole;
  whole.key = part.key;
  if (whole.key) take_off(*whole.key, word);
  whole.path = part.path;
  if (!whole.path.empty()) take_off(whole.path, word);
  whole.name = part.name;
  whole.state = part.state;
  if (!take_off(whole.state, word)) take_off(whole.name, word);
  whole.dtype = composite->dtype;
  whole.shape = composite->shape;
  whole.part_of = std::make_shared<const PartOf>(PartOf{composite, ""});
  return whole;
}

}  // namespace ebb::formats
