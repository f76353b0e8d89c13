#include "tools/cli/json.h"

#include <optional>
#include <utility>

#include "ebb/formats/core/check.h"
#include "ebb/formats/core/json_text.h"

namespace ebb::tools {

void JsonWriter::begin_value() {
  if (comma_) out_ += ", ";
  comma_ = true;
}

JsonWriter& JsonWriter::open(char bracket) {
  begin_value();
  out_ += bracket;
  comma_ = false;
  ++depth_;
  return *this;
}

JsonWriter& JsonWriter::close(char bracket) {
  out_ += bracket;
  comma_ = true;
  --depth_;
  return *this;
}

JsonWriter& JsonWriter::key(std::string_view name) {
  begin_value();
  formats::append_json_string(out_, name);
  out_ += ": ";
  comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::text(std::string_view value) {
  begin_value();
  formats::append_json_string(out_, value);
  return *this;
}

JsonWriter& JsonWriter::number(std::uint64_t value) { return raw(std::to_string(value)); }

JsonWriter& JsonWriter::raw(std::string_view json) {
  begin_value();
  out_ += json;
  return *this;
}

std::string JsonWriter::take() {
  EBB_CHECK(depth_ == 0);
  out_ += '\n';
  return std::exchange(out_, {});
}

void write_error(JsonWriter& json, const Error& error) {
  const auto known = [](const std::string& text) {
    return text.empty() ? std::nullopt : std::optional(text);
  };
  json.put("code", name_of(error.code)).put("message", error.message);
  json.put("hint", known(error.hint)).put("file", known(error.place.file));
  json.put("offset", error.place.offset).put("rank", error.place.rank);
  json.put("tensor", known(error.place.tensor)).put("step", error.place.step);
}

}  // namespace ebb::tools
