#include "ebb/formats/catalog/value.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <string_view>

#include "ebb/formats/core/check.h"
#include "ebb/formats/core/json_text.h"

namespace ebb::formats {
namespace {

constexpr std::int64_t kExactJsonInteger = std::int64_t{1} << 53;

// Everything is appended to one text, so that a value of any depth is written in linear time.
void append(std::string& out, const Value& value);

void append_tagged(std::string& out, std::string_view tag, const auto& content) {
  ((out += "{\"$") += tag) += "\": ";
  content();
  out += '}';
}

void append_joined(std::string& out, std::size_t count, const auto& item) {
  out += '[';
  for (std::size_t i = 0; i < count; ++i) {
    if (i != 0) out += ", ";
    item(i);
  }
  out += ']';
}

void append_real(std::string& out, double value) {
  if (std::isnan(value) || std::isinf(value)) {
    const std::string_view name = std::isnan(value) ? "nan" : value < 0 ? "-inf" : "inf";
    return append_tagged(out, "float", [&] { append_json_string(out, name); });
  }
  std::array<char, 32> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value);
  EBB_CHECK(end.ec == std::errc{});
  const std::string_view text(digits.data(), static_cast<std::size_t>(end.ptr - digits.data()));
  out += text;
  // A real stays a real for readers that tell 2 from 2.0.
  if (text.find_first_of(".e") == std::string::npos) out += ".0";
}

void append_integer(std::string& out, std::int64_t value) {
  const std::string digits = std::to_string(value);
  if (value < kExactJsonInteger && value > -kExactJsonInteger)
    out += digits;
  else
    append_tagged(out, "int", [&] { append_json_string(out, digits); });
}

void append_hex(std::string& out, ByteView bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  out += '"';
  for (const std::byte b : bytes) {
    out += kDigits[std::to_integer<std::size_t>(b >> 4)];
    out += kDigits[std::to_integer<std::size_t>(b & std::byte{15})];
  }
  out += '"';
}

void append_list(std::string& out, const std::vector<Value>& items) {
  append_joined(out, items.size(), [&](std::size_t i) { append(out, items[i]); });
}

// Python keeps no order in a set: numbers ascend, then everything else by its text.
void append_set(std::string& out, const std::vector<Value>& items) {
  std::vector<std::pair<double, std::size_t>> numbers;  // and where they stand, for equal ones
  std::vector<std::string> rest;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const Value& item = items[i];
    if (item.kind == Value::Kind::real && !std::isnan(item.real))
      numbers.emplace_back(item.real, i);
    else if (item.kind == Value::Kind::integer || item.kind == Value::Kind::boolean)
      numbers.emplace_back(static_cast<double>(item.integer), i);
    else
      rest.push_back(to_json(item));
  }
  std::sort(numbers.begin(), numbers.end());
  std::sort(rest.begin(), rest.end());
  append_joined(out, items.size(), [&](std::size_t i) {
    if (i < numbers.size())
      append(out, items[numbers[i].second]);
    else
      out += rest[i - numbers.size()];
  });
}

void append_dict(std::string& out, const Value& value) {
  const auto& entries = value.entries;
  // A key that looks like one of our tags would be read back as the tag.
  const bool plain = std::all_of(entries.begin(), entries.end(), [](const auto& entry) {
    return entry.first.kind == Value::Kind::string && !entry.first.text.starts_with('$');
  });
  if (!plain)
    return append_tagged(out, "dict", [&] {
      append_joined(out, entries.size(), [&](std::size_t i) {
        append_joined(out, 2, [&](std::size_t part) {
          append(out, part == 0 ? entries[i].first : entries[i].second);
        });
      });
    });
  const std::size_t begin = out.size();
  append_joined(out, entries.size(), [&](std::size_t i) {
    append_json_string(out, entries[i].first.text);
    out += ": ";
    append(out, entries[i].second);
  });
  out[begin] = '{';
  out.back() = '}';
}

void append_object(std::string& out, const Value& value) {
  append_tagged(out, "object", [&] {
    if (value.items.size() != 2) return append_json_string(out, value.text);
    out += "{\"class\": ";
    append_json_string(out, value.text);
    if (!value.items[0].items.empty()) append(out += ", \"arguments\": ", value.items[0]);
    if (value.items[1].kind != Value::Kind::none) append(out += ", \"state\": ", value.items[1]);
    out += '}';
  });
}

void append_tensor(std::string& out, const Value& value) {
  append_tagged(out, "tensor", [&] {
    append_json_string(out += "{\"dtype\": ", name_of(value.dtype));
    append_list(out += ", \"shape\": ", value.items);
    append_json_string(out += ", \"sha256\": ", value.text);
    out += '}';
  });
}

void append_complex(std::string& out, const Value& value) {
  append_tagged(out, "complex", [&] {
    append_joined(out, 2,
                  [&](std::size_t i) { append_real(out, i == 0 ? value.real : value.imaginary); });
  });
}

void append(std::string& out, const Value& value) {
  using Kind = Value::Kind;
  const auto text = [&] { append_json_string(out, value.text); };
  const auto list = [&] { append_list(out, value.items); };
  switch (value.kind) {
    case Kind::none:
      out += "null";
      return;
    case Kind::boolean:
      out += value.integer != 0 ? "true" : "false";
      return;
    case Kind::integer:
      return append_integer(out, value.integer);
    case Kind::big_integer:
      return append_tagged(out, "int", text);
    case Kind::real:
      return append_real(out, value.real);
    case Kind::complex:
      return append_complex(out, value);
    case Kind::string:
      return text();
    case Kind::bytes:
      return append_tagged(out, "bytes", [&] { append_hex(out, value.raw); });
    case Kind::list:
      return list();
    case Kind::tuple:
      return append_tagged(out, "tuple", list);
    case Kind::set:
      return append_tagged(out, "set", [&] { append_set(out, value.items); });
    case Kind::dict:
      return append_dict(out, value);
    case Kind::size:
      return append_tagged(out, "size", list);
    case Kind::dtype:
      return append_tagged(out, "dtype", [&] { append_json_string(out, name_of(value.dtype)); });
    case Kind::tensor:
      return append_tensor(out, value);
    case Kind::object:
      return append_object(out, value);
  }
  check_failed("a known Value::Kind", __FILE__, __LINE__);
}

}  // namespace

Value::Value() = default;
Value::Value(const Value&) = default;
Value::Value(Value&&) noexcept = default;
Value& Value::operator=(const Value&) = default;
Value& Value::operator=(Value&&) noexcept = default;
Value::~Value() = default;

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

Value Value::of_tuple(std::vector<Value> items) {
  Value out = of_list(std::move(items));
  out.kind = Kind::tuple;
  return out;
}

Value Value::of_dict(std::vector<std::pair<std::string, Value>> entries) {
  Value out;
  out.kind = Kind::dict;
  for (auto& [key, value] : entries) out.add(key, std::move(value));
  return out;
}

Value Value::of_dtype(DType value) {
  Value out;
  out.kind = Kind::dtype;
  out.dtype = value;
  return out;
}

void Value::add(std::string_view key, Value value) {
  entries.emplace_back(of_string(std::string(key)), std::move(value));
}

const Value* Value::find(std::string_view key) const {
  for (const auto& [name, value] : entries)
    if (name.kind == Kind::string && name.text == key) return &value;
  return nullptr;
}

std::string to_json(const Value& value) {
  std::string out;
  append(out, value);
  return out;
}

}  // namespace ebb::formats
