#include "ebb/formats/catalog/value_json.h"

#define SIMDJSON_EXCEPTIONS 0
#include <simdjson.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>

#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/sha256.h"
#include "ebb/formats/core/units.h"

namespace ebb::formats {
namespace {

namespace dom = simdjson::dom;
using Kind = Value::Kind;

// to_json() shows a tensor by its digest and an object by its class; here they are dicts under a
// key of their own, which it writes in full.
constexpr std::string_view kTensor = "$ebb.tensor";  // {"dtype", "shape", "bytes"}
constexpr std::string_view kObject = "$ebb.object";  // [class, arguments, attributes]

Value of_kind(Kind kind) {
  Value value;
  value.kind = kind;
  return value;
}

Value marked(std::string_view key, Value content) {
  Value value = Value::of_dict();
  value.add(key, std::move(content));
  return value;
}

Value packed(Value value) {
  for (Value& item : value.items) item = packed(std::move(item));
  for (auto& [key, item] : value.entries) {
    key = packed(std::move(key));
    item = packed(std::move(item));
  }
  if (value.kind == Kind::object && value.items.size() == 2) {
    value.items.insert(value.items.begin(), Value::of_string(std::move(value.text)));
    return marked(kObject, Value::of_list(std::move(value.items)));
  }
  if (value.kind != Kind::tensor || value.raw.empty()) return value;
  Value content = Value::of_dict();
  content.add("dtype", Value::of_dtype(value.dtype));
  content.add("shape", Value::of_list(std::move(value.items)));
  content.add("bytes", Value::of_bytes(std::move(value.raw)));
  return marked(kTensor, std::move(content));
}

std::optional<Value> tensor_unpacked(const Value& content) {
  const Value* dtype = content.find("dtype");
  const Value* shape = content.find("shape");
  const Value* bytes = content.find("bytes");
  if (dtype == nullptr || dtype->kind != Kind::dtype || bits_of(dtype->dtype) % 8 != 0 ||
      shape == nullptr || shape->kind != Kind::list || bytes == nullptr)
    return std::nullopt;
  std::optional<std::uint64_t> size = bytes_of(dtype->dtype);
  for (const Value& extent : shape->items)
    size = extent.kind == Kind::integer && extent.integer >= 0 && size
               ? checked_mul(*size, static_cast<std::uint64_t>(extent.integer))
               : std::nullopt;
  if (size != bytes->raw.size()) return std::nullopt;
  Value value = of_kind(Kind::tensor);
  value.dtype = dtype->dtype;
  value.items = shape->items;
  value.raw = bytes->raw;
  value.text = sha256_hex(value.raw);
  return value;
}

// nullopt: marked, but not what the mark says.
std::optional<Value> unpacked(Value dict) {
  if (dict.entries.size() != 1 || dict.entries.front().first.kind != Kind::string) return dict;
  const std::string& key = dict.entries.front().first.text;
  Value& content = dict.entries.front().second;
  if (key == kTensor) return tensor_unpacked(content);
  if (key != kObject) return dict;
  if (content.kind != Kind::list || content.items.size() != 3 ||
      content.items[0].kind != Kind::string || content.items[1].kind != Kind::tuple)
    return std::nullopt;
  Value value = of_kind(Kind::object);
  value.text = content.items[0].text;
  value.items = {std::move(content.items[1]), std::move(content.items[2])};
  return value;
}

// simdjson's own limit of nesting is 1024: what recurses over a document is bounded by it.

std::string list(const std::vector<std::string>& items) {
  std::string out = "[";
  for (const std::string& item : items) out.append(out.size() > 1 ? ", " : "").append(item);
  return out + "]";
}

// nullopt where it is something else.
template <typename T>
std::optional<T> as(auto&& json) {
  T content{};
  return std::forward<decltype(json)>(json).get(content) == simdjson::SUCCESS
             ? std::optional(content)
             : std::nullopt;
}

std::optional<Value> value_from(dom::element json);

std::optional<std::vector<Value>> values_from(dom::element json) {
  const auto array = as<dom::array>(json);
  if (!array) return std::nullopt;
  std::vector<Value> values;
  for (const dom::element item : *array) {
    std::optional<Value> value = value_from(item);
    if (!value) return std::nullopt;
    values.push_back(std::move(*value));
  }
  return values;
}

std::optional<std::string> text_from(dom::element json) {
  const auto text = as<std::string_view>(json);
  return text ? std::optional<std::string>(*text) : std::nullopt;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

std::optional<Value> bytes_from(dom::element json) {
  const std::optional<std::string> text = text_from(json);
  if (!text || text->size() % 2 != 0) return std::nullopt;
  ByteVector bytes;
  for (std::size_t i = 0; i < text->size(); i += 2) {
    const int high = hex_digit((*text)[i]), low = hex_digit((*text)[i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    bytes.push_back(static_cast<std::byte>(high * 16 + low));
  }
  return Value::of_bytes(std::move(bytes));
}

std::optional<Value> big_from(dom::element json) {
  const std::optional<std::string> digits = text_from(json);
  if (!digits || digits->empty()) return std::nullopt;
  const std::size_t first = digits->front() == '-' ? 1 : 0;
  if (digits->size() == first || digits->find_first_not_of("0123456789", first) != digits->npos)
    return std::nullopt;
  std::int64_t number = 0;
  const char* const end = digits->data() + digits->size();
  if (std::from_chars(digits->data(), end, number).ec == std::errc{}) return Value::of_int(number);
  Value value = of_kind(Kind::big_integer);
  value.text = *digits;
  return value;
}

std::optional<double> real_from(dom::element json) {
  if (json.is_number()) return as<double>(json);
  const auto text = as<std::string_view>(json["$float"]);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (text == "inf") return kInfinity;
  return text == "-inf" ? std::optional(-kInfinity) : std::nullopt;
}

std::optional<Value> complex_from(dom::element json) {
  const auto parts = as<dom::array>(json);
  if (!parts || parts->size() != 2) return std::nullopt;
  const std::optional<double> real = real_from(parts->at(0).value_unsafe());
  const std::optional<double> imaginary = real_from(parts->at(1).value_unsafe());
  if (!real || !imaginary) return std::nullopt;
  Value value = of_kind(Kind::complex);
  value.real = *real;
  value.imaginary = *imaginary;
  return value;
}

std::optional<Value> items_from(Kind kind, dom::element json) {
  std::optional<std::vector<Value>> items = values_from(json);
  if (!items) return std::nullopt;
  Value value = of_kind(kind);
  value.items = std::move(*items);
  return value;
}

std::optional<Value> pairs_from(dom::element json) {
  std::optional<std::vector<Value>> pairs = values_from(json);
  if (!pairs) return std::nullopt;
  Value value = Value::of_dict();
  for (Value& pair : *pairs) {
    if (pair.kind != Kind::list || pair.items.size() != 2) return std::nullopt;
    value.entries.emplace_back(std::move(pair.items[0]), std::move(pair.items[1]));
  }
  return unpacked(std::move(value));
}

std::optional<Value> text_value(Kind kind, dom::element json) {
  std::optional<std::string> text = text_from(json);
  if (!text) return std::nullopt;
  Value value = of_kind(kind);
  value.text = std::move(*text);
  if (kind != Kind::dtype) return value;
  const std::optional<DType> dtype = dtype_named(std::exchange(value.text, {}));
  if (!dtype) return std::nullopt;
  value.dtype = *dtype;
  return value;
}

std::optional<Value> tensor_from(dom::element json) {
  const auto dtype = as<dom::element>(json["dtype"]), shape = as<dom::element>(json["shape"]);
  const auto digest = as<std::string_view>(json["sha256"]);
  if (!dtype || !shape) return std::nullopt;
  std::optional<Value> type = text_value(Kind::dtype, *dtype);
  std::optional<Value> value = items_from(Kind::tensor, *shape);
  if (!type || !value || !digest) return std::nullopt;
  value->dtype = type->dtype;
  value->text = *digest;
  return value;
}

// One of to_json()'s tags: {"$tuple": [...]}.
std::optional<Value> tagged_from(std::string_view tag, dom::element content, dom::element whole) {
  if (tag == "$tuple") return items_from(Kind::tuple, content);
  if (tag == "$set") return items_from(Kind::set, content);
  if (tag == "$size") return items_from(Kind::size, content);
  if (tag == "$dict") return pairs_from(content);
  if (tag == "$bytes") return bytes_from(content);
  if (tag == "$int") return big_from(content);
  if (tag == "$complex") return complex_from(content);
  if (tag == "$dtype") return text_value(Kind::dtype, content);
  if (tag == "$object") return text_value(Kind::object, content);
  if (tag == "$tensor") return tensor_from(content);
  if (tag != "$float") return std::nullopt;
  const std::optional<double> real = real_from(whole);
  return real ? std::optional(Value::of_real(*real)) : std::nullopt;
}

std::optional<Value> object_from(dom::element json) {
  dom::object object;
  if (json.get(object) != simdjson::SUCCESS) return std::nullopt;
  if (object.size() == 1 && object.begin().key().starts_with('$'))
    return tagged_from(object.begin().key(), object.begin().value(), json);
  Value value = Value::of_dict();
  for (const auto& [key, item] : object) {
    std::optional<Value> content = value_from(item);
    if (!content) return std::nullopt;
    value.add(key, std::move(*content));
  }
  return value;
}

std::optional<Value> value_from(dom::element json) {
  switch (json.type()) {
    case dom::element_type::NULL_VALUE:
      return Value{};
    case dom::element_type::BOOL:
      return Value::of_bool(json.get_bool().value_unsafe());
    case dom::element_type::INT64:
      return Value::of_int(json.get_int64().value_unsafe());
    case dom::element_type::DOUBLE:
      return Value::of_real(json.get_double().value_unsafe());
    case dom::element_type::STRING:
      return text_value(Kind::string, json);
    case dom::element_type::ARRAY:
      return items_from(Kind::list, json);
    case dom::element_type::OBJECT:
      return object_from(json);
    default:
      return std::nullopt;  // above 2^63: never written, those are tagged
  }
}

std::optional<std::vector<PathItem>> path_from(dom::element json) {
  const auto array = as<dom::array>(json);
  if (!array) return std::nullopt;
  std::vector<PathItem> path;
  for (const dom::element item : *array) {
    if (const auto index = as<std::int64_t>(item)) {
      path.emplace_back(*index);
    } else if (std::optional<std::string> text = text_from(item)) {
      path.emplace_back(std::move(*text));
    } else {
      return std::nullopt;
    }
  }
  return path;
}

Error malformed(const std::string& where, std::string_view why) {
  return {Code::corrupt, compose("{}: {}", where, why)};
}

// Parses `json` and calls visit(element), which says whether the element is what it should be.
template <typename Visit>
Result<> read_document(std::string_view json, const std::string& where, Visit visit) {
  if (json.size() > kMaxJson)
    return Error{Code::limit,
                 compose("{}: {} bytes of JSON; the limit is {}", where, json.size(), kMaxJson)};
  dom::parser parser;
  dom::element root;
  const simdjson::padded_string text(json);
  if (const auto error = parser.parse(text).get(root); error != simdjson::SUCCESS)
    return malformed(where, std::string("not JSON: ") + simdjson::error_message(error));
  if (!visit(root)) return malformed(where, "JSON, but not of the form that belongs here");
  return {};
}

template <typename Visit>
bool each_item(dom::element json, Visit visit) {
  const auto array = as<dom::array>(json);
  return array && std::ranges::all_of(*array, visit);
}

// read(element, entries) appends what one element of the list is, or says that it is nothing such.
template <typename Entry>
Result<std::vector<Entry>> read_list(std::string_view json, const std::string& where,
                                     bool (*read)(dom::element, std::vector<Entry>&)) {
  std::vector<Entry> entries;
  EBB_TRY(read_document(json, where, [&](dom::element root) {
    return each_item(root, [&](dom::element item) { return read(item, entries); });
  }));
  return entries;
}

bool read_value_entry(dom::element json, std::vector<ValueEntry>& values) {
  const auto entry = as<dom::array>(json);
  if (!entry || entry->size() != 3) return false;
  auto item = entry->begin();
  std::optional<std::string> key = text_from(*item);
  std::optional<std::vector<PathItem>> path = path_from(*++item);
  std::optional<Value> value = value_from(*++item);
  if (!key || !path || !value) return false;
  values.push_back({std::move(*key), std::move(*path), std::move(*value)});
  return true;
}

bool read_group(dom::element json, std::vector<GroupEntry>& groups) {
  GroupEntry group;
  const auto name = as<std::string_view>(json["optimizer"]);
  const auto settings = as<dom::element>(json["settings"]);
  const auto params = as<dom::element>(json["params"]);
  if (!settings || !params) return false;
  const bool settings_read = each_item(*settings, [&](dom::element setting) {
    std::optional<Value> pair = value_from(setting);
    if (!pair || pair->kind != Kind::list || pair->items.size() != 2 ||
        pair->items[0].kind != Kind::string)
      return false;
    group.settings.emplace_back(std::move(pair->items[0].text), std::move(pair->items[1]));
    return true;
  });
  const bool params_read = each_item(*params, [&](dom::element param) {
    std::optional<std::string> text = text_from(param);
    if (text) group.params.push_back(std::move(*text));
    return text.has_value();
  });
  group.optimizer = name.value_or("");
  groups.push_back(std::move(group));
  return name && settings_read && params_read;
}

}  // namespace

bool is_value_mark(std::string_view key) { return key == kTensor || key == kObject; }

std::string value_json(const Value& value) { return to_json(packed(value)); }

std::string values_json(const std::vector<ValueEntry>& values) {
  std::vector<std::string> items;
  for (const ValueEntry& entry : values) {
    std::vector<std::string> path;
    for (const PathItem& item : entry.path) {
      const auto* text = std::get_if<std::string>(&item);
      path.push_back(text ? json_string(*text) : std::to_string(std::get<std::int64_t>(item)));
    }
    items.push_back(list({json_string(entry.key), list(path), to_json(packed(entry.value))}));
  }
  return list(items);
}

std::string groups_json(const std::vector<GroupEntry>& groups) {
  std::vector<std::string> items;
  for (const GroupEntry& group : groups) {
    std::vector<std::string> settings, params;
    for (const auto& [name, value] : group.settings)
      settings.push_back(list({json_string(name), to_json(packed(value))}));
    for (const std::string& name : group.params) params.push_back(json_string(name));
    items.push_back(compose("{\"optimizer\": {}, \"settings\": {}, \"params\": {}}",
                            json_string(group.optimizer), list(settings), list(params)));
  }
  return list(items);
}

std::string param_steps_json(const std::map<std::string, std::int64_t>& steps) {
  std::string out = "{";
  for (const auto& [name, count] : steps)
    out += compose("{}{}: {}", out.size() > 1 ? ", " : "", json_string(name), count);
  return out + "}";
}

std::size_t param_step_bytes(std::string_view name) {
  constexpr auto most = std::numeric_limits<std::int64_t>::min();
  return compose(", {}: {}", json_string(name), most).size();
}

Result<Value> read_value_json(std::string_view json, const std::string& where) {
  std::optional<Value> value;
  EBB_TRY(read_document(json, where, [&](dom::element root) {
    value = value_from(root);
    return value.has_value();
  }));
  return std::move(*value);
}

Result<std::vector<ValueEntry>> read_values_json(std::string_view json, const std::string& where) {
  return read_list(json, where, read_value_entry);
}

Result<std::vector<GroupEntry>> read_groups_json(std::string_view json, const std::string& where) {
  return read_list(json, where, read_group);
}

Result<std::map<std::string, std::int64_t>> read_param_steps_json(std::string_view json,
                                                                  const std::string& where) {
  std::map<std::string, std::int64_t> steps;
  EBB_TRY(read_document(json, where, [&](dom::element root) {
    const auto object = as<dom::object>(root);
    return object && std::ranges::all_of(*object, [&](const auto& step) {
             const auto count = as<std::int64_t>(step.value);
             if (count) steps.emplace(std::string(step.key), *count);
             return count.has_value();
           });
  }));
  return steps;
}

}  // namespace ebb::formats
