#include "tools/cli/json.h"

#include <utility>

#include "ebb/formats/core/check.h"
#include "ebb/formats/core/json_text.h"

namespace ebb::tools {

void JsonWriter::begin_value() {
  if (comma_) out_ += ", ";
  comma_ = true;
}

JsonWriter& JsonWriter::open_object() {
  begin_value();
  out_ += '{';
  comma_ = false;
  ++depth_;
  return *this;
}

JsonWriter& JsonWriter::close_object() {
  out_ += '}';
  comma_ = true;
  --depth_;
  return *this;
}

JsonWriter& JsonWriter::open_list() {
  begin_value();
  out_ += '[';
  comma_ = false;
  ++depth_;
  return *this;
}

JsonWriter& JsonWriter::close_list() {
  out_ += ']';
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
  const auto text_or_null = [&](std::string_view name, const std::string& text) {
    json.key(name);
    if (text.empty())
      json.null();
    else
      json.text(text);
  };
  const auto number_or_null = [&](std::string_view name, const auto& number) {
    json.key(name).raw(number ? std::to_string(*number) : "null");
  };
  json.key("code").text(name_of(error.code)).key("message").text(error.message);
  text_or_null("hint", error.hint);
  text_or_null("file", error.place.file);
  number_or_null("offset", error.place.offset);
  number_or_null("rank", error.place.rank);
  text_or_null("tensor", error.place.tensor);
  number_or_null("step", error.place.step);
}

}  // namespace ebb::tools
