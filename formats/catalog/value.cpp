#include "formats/catalog/value.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <string_view>

#include "formats/core/check.h"
#include "formats/core/json_text.h"

namespace formats {
namespace {

constexpr std::int64_t kExactJsonInteger = std::int64_t{1} << 53;

std::string tagged(std::string_view tag, std::string_view json) {
  std::string out = "{\"$";
  ((out += tag) += "\": ") += json;
  return out + "}";
}

std::string real_to_json(double value) {
  if (std::isnan(value)) return tagged("float", "\"nan\"");
  if (std::isinf(value)) return tagged("float", value < 0 ? "\"-inf\"" : "\"inf\"");
  std::array<char, 32> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value);
  CHECK(end.ec == std::errc{});
  std::string text(digits.data(), end.ptr);
  // A real stays a real for readers that tell 2 from 2.0.
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string integer_to_json(std::int64_t value) {
  const std::string digits = std::to_string(value);
  if (value < kExactJsonInteger && value > -kExactJsonInteger) return digits;
  return tagged("int", "\"" + digits + "\"");
}

std::string hex_json(ByteView bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out = "\"";
  for (const std::byte b : bytes) {
    out += kDigits[std::to_integer<std::size_t>(b >> 4)];
    out += kDigits[std::to_integer<std::size_t>(b & std::byte{15})];
  }
  return out + "\"";
}

std::string joined(const std::vector<std::string>& items) {
  std::string out = "[";
  for (std::size_t i = 0; i < items.size(); ++i) (out += i == 0 ? "" : ", ") += items[i];
  return out + "]";
}

std::string list_to_json(const std::vector<Value>& items) {
  std::vector<std::string> texts;
  for (const Value& item : items) texts.push_back(to_json(item));
  return joined(texts);
}

// Python keeps no order in a set: numbers ascend, then everything else by its text.
std::string set_to_json(std::vector<Value> items) {
  const auto number = [](const Value& v) {
    return v.kind == Value::Kind::real ? v.real : static_cast<double>(v.integer);
  };
  const auto is_number = [](const Value& v) {
    return (v.kind == Value::Kind::real && !std::isnan(v.real)) || v.kind == Value::Kind::integer ||
           v.kind == Value::Kind::boolean;
  };
  const auto rest = std::ranges::stable_partition(items, is_number).begin();
  std::stable_sort(items.begin(), rest,
                   [&](const Value& a, const Value& b) { return number(a) < number(b); });
  std::stable_sort(rest, items.end(),
                   [](const Value& a, const Value& b) { return to_json(a) < to_json(b); });
  return list_to_json(items);
}

std::string dict_to_json(const Value& value) {
  // A key that looks like one of our tags would be read back as the tag.
  const bool plain = std::ranges::all_of(value.entries, [](const auto& entry) {
    return entry.first.kind == Value::Kind::string && !entry.first.text.starts_with('$');
  });
  std::vector<std::string> items;
  for (const auto& [key, item] : value.entries)
    items.push_back(plain ? json_string(key.text) + ": " + to_json(item)
                          : joined({to_json(key), to_json(item)}));
  std::string list = joined(items);
  if (!plain) return tagged("dict", list);
  list.front() = '{';
  list.back() = '}';
  return list;
}

std::string object_to_json(const Value& value) {
  if (value.items.size() != 2) return tagged("object", json_string(value.text));
  std::string json = "{\"class\": " + json_string(value.text);
  if (!value.items[0].items.empty()) json += ", \"arguments\": " + to_json(value.items[0]);
  if (value.items[1].kind != Value::Kind::none) json += ", \"state\": " + to_json(value.items[1]);
  return tagged("object", json + "}");
}

std::string tensor_to_json(const Value& value) {
  return tagged("tensor", "{\"dtype\": " + json_string(name_of(value.dtype)) +
                              ", \"shape\": " + list_to_json(value.items) +
                              ", \"sha256\": " + json_string(value.text) + "}");
}

}  // namespace

Value Value::of_bool(bool value) {
  Value out;
  out.kind = Kind::boolean;
  out.integer = value ? 1 : 0;
  return out;
}

Value Value::of_int(std::int64_t value) {
  Value out;
  out.kind = Kind::integer;
  out.integer = value;
  return out;
}

Value Value::of_real(double value) {
  Value out;
  out.kind = Kind::real;
  out.real = value;
  return out;
}

Value Value::of_string(std::string value) {
  Value out;
  out.kind = Kind::string;
  out.text = std::move(value);
  return out;
}

Value Value::of_bytes(ByteVector value) {
  Value out;
  out.kind = Kind::bytes;
  out.raw = std::move(value);
  return out;
}

Value Value::of_list(std::vector<Value> items) {
  Value out;
  out.kind = Kind::list;
  out.items = std::move(items);
  return out;
}

const Value* Value::find(std::string_view key) const {
  for (const auto& [name, value] : entries)
    if (name.kind == Kind::string && name.text == key) return &value;
  return nullptr;
}

std::string to_json(const Value& value) {
  using Kind = Value::Kind;
  switch (value.kind) {
    case Kind::none:
      return "null";
    case Kind::boolean:
      return value.integer != 0 ? "true" : "false";
    case Kind::integer:
      return integer_to_json(value.integer);
    case Kind::big_integer:
      return tagged("int", json_string(value.text));
    case Kind::real:
      return real_to_json(value.real);
    case Kind::complex:
      return tagged("complex", joined({real_to_json(value.real), real_to_json(value.imaginary)}));
    case Kind::string:
      return json_string(value.text);
    case Kind::bytes:
      return tagged("bytes", hex_json(value.raw));
    case Kind::list:
      return list_to_json(value.items);
    case Kind::tuple:
      return tagged("tuple", list_to_json(value.items));
    case Kind::set:
      return tagged("set", set_to_json(value.items));
    case Kind::dict:
      return dict_to_json(value);
    case Kind::size:
      return tagged("size", list_to_json(value.items));
    case Kind::dtype:
      return tagged("dtype", json_string(name_of(value.dtype)));
    case Kind::tensor:
      return tensor_to_json(value);
    case Kind::object:
      return object_to_json(value);
  }
  check_failed("a known Value::Kind", __FILE__, __LINE__);
}

}  // namespace formats
