#include "tools/cli/json.h"

#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "ebb/formats/core/check.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/number_text.h"

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

namespace {

// Messages begin with the file, and with the byte where one is known; what nobody said apart is
// read from there.
ErrorPlace place_of(const Error& error) {
  ErrorPlace place = error.place;
  std::string_view text = error.message;
  constexpr std::string_view kNotOpened = "cannot open ";
  const bool is_opened = !text.starts_with(kNotOpened);
  if (!is_opened) text.remove_prefix(kNotOpened.size());
  text = text.substr(0, text.find(": "));
  const std::size_t colon = text.rfind(':');
  const auto offset = colon == std::string_view::npos
                          ? std::nullopt
                          : formats::parse_number<std::uint64_t>(text.substr(colon + 1));
  if (offset) text = text.substr(0, colon);
  std::error_code ignored;
  const bool is_file = !is_opened || std::filesystem::exists(std::filesystem::path(text), ignored);
  if (!place.file.empty() || !is_file) return place;
  place.file = text;
  if (!place.offset) place.offset = offset;
  return place;
}

}  // namespace

void write_error(JsonWriter& json, const Error& error) {
  const ErrorPlace place = place_of(error);
  const auto known = [](const std::string& text) {
    return text.empty() ? std::nullopt : std::optional(text);
  };
  json.put("code", name_of(error.code)).put("message", error.message);
  json.put("hint", known(error.hint)).put("file", known(place.file));
  json.put("offset", place.offset).put("rank", place.rank);
  json.put("tensor", known(place.tensor)).put("step", place.step);
}

}  // namespace ebb::tools
