// Strict reading of the small JSON documents of formats over simdjson's on-demand parser:
// duplicate keys refused, numbers whole and not negative, every error with file:offset and the text
// that was found. Nothing recurses, so nesting depth costs nothing.
#pragma once

#define SIMDJSON_EXCEPTIONS 0
#include <simdjson.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/formats/core/bytes.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/name_table.h"
#include "ebb/formats/core/result.h"
#include "ebb/formats/layout/shape.h"

namespace ebb::formats::json {

namespace ondemand = simdjson::ondemand;
using Value = ondemand::value;

// How messages call a value: "tensor 'w': shape". Made into text for a message only, because most
// values are never spoken of.
struct Subject {
  Subject(std::string_view what) : kind(what) {}
  Subject(const std::string& what) : kind(what) {}
  Subject(const char* what) : kind(what) {}
  Subject(std::string_view kind_of_it, std::string_view key_of_it, std::string_view part_of_it = {})
      : kind(kind_of_it), key(key_of_it), part(part_of_it) {}
  std::string text() const;

  std::string_view kind;
  std::optional<std::string_view> key;
  std::string_view part;
};

class Reader {
 public:
  struct Place {
    std::string file;
    std::uint64_t offset = 0;  // of the document's first byte in the file
    std::string what;          // "the header": how messages call the document
  };
  Reader(Place place, std::string_view text);
  // Without a copy: the document is followed by `padding` bytes of any kind.
  static constexpr std::size_t padding = simdjson::SIMDJSON_PADDING;
  Reader(Place place, ByteVector padded);  // REQUIRES: padded.size() >= padding

  // Reads the whole document, an object; visit(key, value) for each field, in order.
  template <typename Visit>
  Result<> read(Visit visit);

  // visit(key, value) for each field; a key that comes twice is refused. Keys live as long as this.
  template <typename Visit>
  Result<> fields(Value value, const Subject& of, Visit visit);

  // `of` says in messages what the value is.
  Result<std::string> string(Value value, const Subject& of);
  Result<std::uint64_t> whole(Value value, const Subject& of);
  // Replaces what `into` holds.
  Result<> wholes(Value value, const Subject& of, Shape& into);

  std::uint64_t offset_of(Value value) const;  // in the file
  // file:offset of the value and the message.
  Error at(Value value, const std::string& message) const;

 private:
  template <typename Visit>
  Result<> each(ondemand::object object, const Subject& of, Visit visit);
  Result<> begin();
  Result<> end();
  Error at(const char* where, const std::string& message) const;
  Error invalid();  // at the parser's place
  Error invalid(const char* where) const;
  Error unexpected(Value value, const Subject& of, std::string_view due) const;
  std::string_view token_at(const char* where) const;
  bool begins_with(Value value, char c) const;

  Place place_;
  ByteVector padded_;
  std::string_view text_;  // of it
  ondemand::parser parser_;
  ondemand::document document_;
};

template <typename Visit>
Result<> Reader::each(ondemand::object object, const Subject& of, Visit visit) {
  SeenKeys seen;
  for (auto field : object) {
    std::string_view key;
    Value value;
    if (field.unescaped_key().get(key) != simdjson::SUCCESS) return invalid();
    if (field.value().get(value) != simdjson::SUCCESS) return invalid();
    if (!seen.insert(key))
      return at(value, compose("key '{}' appears twice in {}", printable(key), of.text()));
    EBB_TRY(visit(key, value));
  }
  return {};
}

template <typename Visit>
Result<> Reader::read(Visit visit) {
  EBB_TRY(begin());
  ondemand::object object;
  if (document_.get_object().get(object) != simdjson::SUCCESS) return invalid();
  EBB_TRY(each(object, place_.what, visit));
  return end();
}

template <typename Visit>
Result<> Reader::fields(Value value, const Subject& of, Visit visit) {
  if (!begins_with(value, '{')) return unexpected(value, of, "an object");
  ondemand::object object;
  if (value.get_object().get(object) != simdjson::SUCCESS) return invalid();
  return each(object, of, visit);
}

}  // namespace ebb::formats::json
