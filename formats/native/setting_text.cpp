#include "ebb/formats/native/setting_text.h"

#include <charconv>
#include <cmath>

#include "ebb/formats/catalog/value_json.h"

namespace ebb::formats::native {

Value setting_value(const std::string& text) {
  if (text == "true" || text == "false") return Value::of_bool(text == "true");
  const char* const end = text.data() + text.size();
  std::int64_t integer = 0;
  if (const auto [at, error] = std::from_chars(text.data(), end, integer);
      error == std::errc() && at == end)
    return Value::of_int(integer);
  double real = 0;
  if (const auto [at, error] = std::from_chars(text.data(), end, real);
      error == std::errc() && at == end && std::isfinite(real))
    return Value::of_real(real);
  if (text == "null" || text.starts_with('"') || text.starts_with('[') || text.starts_with('{'))
    if (auto value = read_value_json(text, "a setting")) return std::move(*value);
  return Value::of_string(text);
}

std::string setting_text(const Value& value) {
  if (value.kind == Value::Kind::string) {
    const Value read = setting_value(value.text);
    if (read.kind == Value::Kind::string && read.text == value.text) return value.text;
  }
  return value_json(value);
}

}  // namespace ebb::formats::native
