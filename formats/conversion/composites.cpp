#include "ebb/formats/conversion/composites.h"

#include <algorithm>
#include <map>
#include <optional>

#include "ebb/formats/catalog/composite.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/units.h"
#include "ebb/formats/pickle/known_globals.h"

namespace ebb::formats {
namespace {

constexpr std::string_view kHint =
    "--dequantize makes plain tensors of those whose formula is known; --to torch and dcp keep "
    "them, --to safetensors, hdf5 and ebb their parts";

// Of an object of which only the class is known nothing can be made again.
bool is_kept(const Value& value) {
  const bool object = value.kind == Value::Kind::object && value.items.size() != 2;
  return !object && std::ranges::all_of(value.items, is_kept) &&
         std::ranges::all_of(value.entries, [](const auto& entry) {
           return is_kept(entry.first) && is_kept(entry.second);
         });
}

Error refused(const TensorEntry& part, const std::string& why) {
  const TensorEntry whole = whole_of(part);
  return {Code::unsupported,
          compose("tensor '{}' ({}) is of {}: {}", printable(whole.name), printable(whole.state),
                  class_text(whole.part_of->whole->type), why),
          std::string(kHint)};
}

Result<> check_whole(const std::vector<TensorEntry>& parts) {
  const Composite& whole = *parts.front().part_of->whole;
  if (parts.size() != whole.parts)
    return refused(parts.front(), compose("{} of its {} parts are left, and it is made of all",
                                          parts.size(), whole.parts));
  if (!is_tensor_class(whole.type))
    return refused(parts.front(), "a class of no package that is known is not written");
  for (const auto& [name, value] : whole.settings)
    if (!is_kept(value))
      return refused(parts.front(), compose("its {} is an object of which only the class is known",
                                            printable(name)));
  return {};
}

Value shape_value(const Shape& shape) {
  std::vector<Value> items;
  for (const std::uint64_t extent : shape)
    items.push_back(Value::of_int(static_cast<std::int64_t>(extent)));
  return Value::of_list(std::move(items));
}

Value said_of(const std::vector<TensorEntry>& parts) {
  const TensorEntry whole = whole_of(parts.front());
  const Composite& composite = *whole.part_of->whole;
  std::vector<Value> names;
  for (const TensorEntry& part : parts) names.push_back(Value::of_string(part.part_of->part));
  Value settings = Value::of_dict();
  Value not_kept = Value::of_dict();  // names, and of which class the object is
  for (const auto& [name, value] : composite.settings)
    is_kept(value) ? settings.add(name, value)
                   : not_kept.add(name, Value::of_string(printable(value.text)));
  return Value::of_dict({{"name", Value::of_string(whole.name)},
                         {"state", Value::of_string(whole.state)},
                         {"class", Value::of_string(composite.type)},
                         {"dtype", Value::of_string(std::string(name_of(composite.dtype)))},
                         {"shape", shape_value(composite.shape)},
                         {"parts", Value::of_list(std::move(names))},
                         {"settings", std::move(settings)},
                         {"not_kept", std::move(not_kept)}});
}

// One that is_kept() is false of.
Value object_of(std::string type) {
  Value value;
  value.kind = Value::Kind::object;
  value.text = std::move(type);
  return value;
}

struct Said {
  std::string name, state;
  Composite whole;
  std::vector<std::string> parts;
};

const std::string* text_in(const Value& value, std::string_view key) {
  const Value* found = value.find(key);
  return found != nullptr && found->kind == Value::Kind::string ? &found->text : nullptr;
}

std::optional<Said> said_in(const Value& value) {
  const std::string* name = text_in(value, "name");
  const std::string* state = text_in(value, "state");
  const std::string* type = text_in(value, "class");
  const std::string* word = text_in(value, "dtype");
  const auto dtype = word == nullptr ? std::nullopt : dtype_named(*word);
  const Value* shape = value.find("shape");
  const Value* parts = value.find("parts");
  const Value* settings = value.find("settings");
  if (name == nullptr || state == nullptr || type == nullptr || !dtype || shape == nullptr ||
      parts == nullptr || settings == nullptr)
    return std::nullopt;
  Said said{*name, *state, {.type = *type, .dtype = *dtype, .parts = parts->items.size()}, {}};
  for (const Value& extent : shape->items) {
    if (extent.kind != Value::Kind::integer || extent.integer < 0) return std::nullopt;
    said.whole.shape.push_back(static_cast<std::uint64_t>(extent.integer));
  }
  const auto elems = checked_volume(said.whole.shape);
  if (!elems || !checked_mul(*elems, sizeof(double))) return std::nullopt;
  for (const Value& part : parts->items) said.parts.push_back(part.text);
  for (const auto& [key, setting] : settings->entries)
    said.whole.settings.emplace_back(key.text, setting);
  if (const Value* not_kept = value.find("not_kept"))
    for (const auto& [key, name_of_class] : not_kept->entries)
      said.whole.settings.emplace_back(key.text, object_of(name_of_class.text));
  return said;
}

// Parts by their names and states.
using Places = std::map<std::pair<std::string_view, std::string_view>, TensorEntry*>;

// Parts that a selection has left out are missed where the whole is made again.
void take(const Said& said, const Places& places) {
  const auto composite = std::make_shared<const Composite>(said.whole);
  TensorEntry whole;
  whole.name = said.name;
  whole.state = said.state;
  for (const std::string& word : said.parts) {
    const auto [name, state] = part_name(whole, word);
    if (const auto at = places.find({name, state}); at != places.end())
      at->second->part_of = std::make_shared<const PartOf>(PartOf{composite, word});
  }
}

}  // namespace

void take_composites(Catalog& content) {
  const auto value = std::ranges::find(content.values, kCompositesKey, &ValueEntry::key);
  if (value == content.values.end()) return;
  Places places;
  for (TensorEntry& tensor : content.tensors)
    places.emplace(std::pair(std::string_view(tensor.name), std::string_view(tensor.state)),
                   &tensor);
  std::vector<Said> all;
  for (const Value& one : value->value.items) {
    auto said = said_in(one);
    if (!said) return;
    all.push_back(std::move(*said));
  }
  for (const Said& said : all) take(said, places);
  content.values.erase(value);
}

Result<> settle_composites(const Format& to, Catalog& content) {
  std::map<const Composite*, std::vector<TensorEntry>> wholes;
  std::vector<const Composite*> order;
  for (const TensorEntry& tensor : content.tensors) {
    if (tensor.part_of == nullptr) continue;
    std::vector<TensorEntry>& parts = wholes[tensor.part_of->whole.get()];
    if (parts.empty()) order.push_back(tensor.part_of->whole.get());
    parts.push_back(tensor);
  }
  if (order.empty()) return {};
  if (to.traits().composites == Composites::refused)
    return refused(wholes.at(order.front()).front(),
                   compose("a job that resumes from {} knows no such class", to.name()));
  if (to.traits().composites == Composites::classes) {
    for (const Composite* whole : order) EBB_TRY(check_whole(wholes.at(whole)));
    return {};
  }
  std::vector<Value> said;
  for (const Composite* whole : order) said.push_back(said_of(wholes.at(whole)));
  content.values.push_back({std::string(kCompositesKey), {}, Value::of_list(std::move(said))});
  for (TensorEntry& tensor : content.tensors) tensor.part_of.reset();
  return {};
}

}  // namespace ebb::formats
