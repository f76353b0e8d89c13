// Strict reading of the small JSON documents of formats over simdjson's on-demand parser:
// duplicate keys refused, numbers whole and not negative, every error with file:offset and the text
// that was found. Nothing recurses, so nesting depth costs nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/formats/core/bytes.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/result.h"
#include "ebb/formats/layout/shape.h"

namespace ebb::formats::json {

// A value of the document, for as long as the visit runs that it was given to.
class Value {
 private:
  friend class Reader;
  explicit Value(const void* parsed) : parsed_(parsed) {}
  const void* parsed_;
};
using Visit = std::function<Result<>(std::string_view key, Value value)>;

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
  static constexpr std::size_t padding = 64;
  Reader(Place place, ByteVector padded);  // REQUIRES: padded.size() >= padding
  ~Reader();
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  // Reads the whole document, an object; visits each field, in order.
  Result<> read(const Visit& visit);

  // Visits each field; a key that comes twice is refused. Keys live as long as this.
  Result<> fields(Value value, const Subject& of, const Visit& visit);

  // `of` says in messages what the value is.
  Result<std::string> string(Value value, const Subject& of);
  Result<std::uint64_t> whole(Value value, const Subject& of);
  // Replaces what `into` holds.
  Result<> wholes(Value value, const Subject& of, Shape& into);

  std::uint64_t offset_of(Value value) const;  // in the file
  // file:offset of the value and the message.
  Error at(Value value, const std::string& message) const;

 private:
  struct Parser;  // simdjson's
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
  std::unique_ptr<Parser> parser_;
};

}  // namespace ebb::formats::json
