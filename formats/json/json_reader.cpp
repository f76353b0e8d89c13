#include "ebb/formats/json/json_reader.h"

#define SIMDJSON_EXCEPTIONS 0
#include <simdjson.h>

#include <algorithm>
#include <charconv>

#include "ebb/formats/core/name_table.h"
#include "ebb/formats/core/refuse.h"

namespace ebb::formats::json {

namespace ondemand = simdjson::ondemand;

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::size_t digits(std::string_view text) {
  return static_cast<std::size_t>(std::find_if_not(text.begin(), text.end(), is_digit) -
                                  text.begin());
}

// RFC 8259, section 6.
bool is_json_number(std::string_view text) {
  const auto take = [&](std::string_view any) {
    const bool there = !text.empty() && any.find(text.front()) != std::string_view::npos;
    text.remove_prefix(there ? 1 : 0);
    return there;
  };
  const auto take_digits = [&] {
    const std::size_t count = digits(text);
    text.remove_prefix(count);
    return count;
  };
  take("-");
  const bool zero = text.starts_with('0');
  const std::size_t whole = take_digits();
  if (whole == 0 || (zero && whole > 1)) return false;
  if (take(".") && take_digits() == 0) return false;
  if (take("eE")) {
    take("+-");
    if (take_digits() == 0) return false;
  }
  return text.empty();
}

bool is_json_value(std::string_view token) {
  if (token.empty()) return false;
  return token == "true" || token == "false" || token == "null" || token.front() == '"' ||
         token.front() == '{' || token.front() == '[' || is_json_number(token);
}

std::optional<std::size_t> first_not_utf8(std::string_view text) {
  if (simdjson::validate_utf8(text.data(), text.size())) return std::nullopt;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = utf8_length(text.substr(i));
    if (length == 0) return i;
    i += length;
  }
  return std::nullopt;
}

}  // namespace

std::string Subject::text() const {
  std::string out(kind);
  if (key) {
    if (!out.empty()) out += ' ';
    out += "'" + printable(*key) + "'";
  }
  return out.append(part);
}

struct Reader::Parser {
  ondemand::parser parser;
  ondemand::document document;

  // A copy: what is read of a value moves on.
  static ondemand::value of(Value value) {
    return *static_cast<const ondemand::value*>(value.parsed_);
  }
  static const char* place_of(Value value) { return of(value).raw_json_token().data(); }

  static Result<> each(Reader& reader, ondemand::object object, const Subject& of,
                       const Visit& visit) {
    SeenKeys seen;
    for (auto field : object) {
      std::string_view key;
      ondemand::value parsed;
      if (field.unescaped_key().get(key) != simdjson::SUCCESS) return reader.invalid();
      if (field.value().get(parsed) != simdjson::SUCCESS) return reader.invalid();
      const Value value(&parsed);
      if (!seen.insert(key))
        return reader.at(value, compose("key '{}' appears twice in {}", printable(key), of.text()));
      EBB_TRY(visit(key, value));
    }
    return {};
  }
};

static_assert(Reader::padding >= simdjson::SIMDJSON_PADDING);

Reader::Reader(Place place, std::string_view text)
    : place_(std::move(place)),
      padded_(text.size() + padding),
      parser_(std::make_unique<Parser>()) {
  std::copy(text.begin(), text.end(), reinterpret_cast<char*>(padded_.data()));
  text_ = text_of(padded_).substr(0, text.size());
}

Reader::Reader(Place place, ByteVector padded)
    : place_(std::move(place)), padded_(std::move(padded)), parser_(std::make_unique<Parser>()) {
  EBB_CHECK(padded_.size() >= padding);
  text_ = text_of(padded_).substr(0, padded_.size() - padding);
}

Reader::~Reader() = default;

Result<> Reader::read(const Visit& visit) {
  EBB_TRY(begin());
  ondemand::object object;
  if (parser_->document.get_object().get(object) != simdjson::SUCCESS) return invalid();
  EBB_TRY(Parser::each(*this, object, place_.what, visit));
  return end();
}

Result<> Reader::fields(Value value, const Subject& of, const Visit& visit) {
  if (!begins_with(value, '{')) return unexpected(value, of, "an object");
  ondemand::object object;
  if (Parser::of(value).get_object().get(object) != simdjson::SUCCESS) return invalid();
  return Parser::each(*this, object, of, visit);
}

Result<> Reader::begin() {
  if (const auto bad = first_not_utf8(text_))
    return at(text_.data() + *bad, place_.what + " is not UTF-8");
  if (text_.find('{') != text_.find_first_not_of(" \t\r\n"))
    return at(text_.data(), place_.what + " does not begin with '{'");
  const simdjson::padded_string_view padded(text_, padded_.size());
  if (parser_->parser.iterate(padded).get(parser_->document) != simdjson::SUCCESS)
    return at(text_.data(), place_.what + " is not valid JSON");
  return {};
}

Result<> Reader::end() {
  const char* rest = nullptr;
  if (parser_->document.current_location().get(rest) != simdjson::SUCCESS) return {};
  if (token_at(rest).empty()) return {};
  return invalid(rest);
}

std::string_view Reader::token_at(const char* where) const {
  if (where < text_.data() || where >= text_.data() + text_.size()) return {};
  const std::string_view rest = text_.substr(static_cast<std::size_t>(where - text_.data()));
  if (std::string_view("{}[],:").find(rest.front()) != std::string_view::npos)
    return rest.substr(0, 1);
  return rest.substr(0, rest.find_first_of(" \t\r\n{}[],:"));
}

bool Reader::begins_with(Value value, char c) const {
  const char* where = Parser::place_of(value);
  return where >= text_.data() && where < text_.data() + text_.size() && *where == c;
}

std::uint64_t Reader::offset_of(Value value) const {
  const char* const where = Parser::place_of(value);
  return place_.offset + static_cast<std::uint64_t>(where - text_.data());
}

Error Reader::at(const char* where, const std::string& message) const {
  const auto byte = static_cast<std::uint64_t>(where - text_.data());
  return refuse(Code::corrupt, place_.file, place_.offset + byte, message);
}

Error Reader::at(Value value, const std::string& message) const {
  return at(Parser::place_of(value), message);
}

Error Reader::invalid() {
  const char* where = nullptr;
  if (parser_->document.current_location().get(where) != simdjson::SUCCESS ||
      where < text_.data() || where > text_.data() + text_.size())
    where = text_.data() + text_.size();
  return invalid(where);
}

Error Reader::invalid(const char* where) const {
  const auto byte = static_cast<std::uint64_t>(where - text_.data());
  const std::string_view token = token_at(where);
  return at(where, compose("{} is not valid JSON ({} at byte {} of {})", place_.what,
                           (token.empty() ? "the end" : printable(token, 40)), byte, place_.what));
}

Error Reader::unexpected(Value value, const Subject& of, std::string_view due) const {
  const char* where = Parser::place_of(value);
  const std::string_view token = token_at(where);
  if (!is_json_value(token)) return invalid(where);
  return at(where, compose("{} holds {} where {} is due", of.text(), printable(token, 40), due));
}

Result<std::string> Reader::string(Value value, const Subject& of) {
  if (!begins_with(value, '"')) return unexpected(value, of, "a string");
  std::string_view text;
  if (Parser::of(value).get_string().get(text) != simdjson::SUCCESS) return invalid();
  return std::string(text);
}

// simdjson takes what is_json_number() takes, in one pass; its refusals are looked at for a
// message.
Result<std::uint64_t> Reader::whole(Value value, const Subject& of) {
  const char* where = Parser::place_of(value);
  std::uint64_t number = 0;
  if (Parser::of(value).get_uint64().get(number) == simdjson::SUCCESS) return number;
  const std::string_view token = token_at(where);
  if (!is_json_number(token) || digits(token) != token.size())
    return unexpected(value, of, "a whole number");
  if (std::from_chars(token.data(), token.data() + token.size(), number).ec != std::errc{})
    return at(where,
              compose("{} holds {}, which does not fit 64 bits", of.text(), printable(token, 40)));
  return invalid();
}

Result<> Reader::wholes(Value value, const Subject& of, Shape& into) {
  into.clear();
  if (!begins_with(value, '[')) return unexpected(value, of, "a list");
  ondemand::array array;
  if (Parser::of(value).get_array().get(array) != simdjson::SUCCESS) return invalid();
  for (auto element : array) {
    ondemand::value item;
    if (element.get(item) != simdjson::SUCCESS) return invalid();
    EBB_TRY_ASSIGN(const std::uint64_t number, whole(Value(&item), of));
    into.push_back(number);
  }
  return {};
}

}  // namespace ebb::formats::json
