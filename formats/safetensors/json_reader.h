// Strict reading of the small JSON documents of this format over simdjson's on-demand parser:
// duplicate keys refused, numbers whole and not negative, every error with file:offset and the text
// that was found. Nothing recurses, so nesting depth costs nothing.
#pragma once

#define SIMDJSON_EXCEPTIONS 0
#include <simdjson.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "formats/core/json_text.h"
#include "formats/core/result.h"

namespace formats::safetensors {

namespace ondemand = simdjson::ondemand;

// Keys of one object; they must outlive this. Most objects have three or four: those are not worth
// a hash table.
class SeenKeys {
 public:
  bool insert(std::string_view key) {  // false: it was there
    if (!many_.empty()) return many_.insert(key).second;
    const auto end = few_.begin() + count_;
    if (std::find(few_.begin(), end, key) != end) return false;
    few_[count_++] = key;
    if (count_ == few_.size()) many_.insert(few_.begin(), few_.end());
    return true;
  }

 private:
  std::array<std::string_view, 16> few_;
  std::uint32_t count_ = 0;
  std::unordered_set<std::string_view> many_;
};

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

class JsonReader {
 public:
  struct Place {
    std::string file;
    std::uint64_t offset = 0;  // of the document's first byte in the file
    std::string what;          // "the header": how messages call the document
  };
  JsonReader(Place place, std::string_view text) : place_(std::move(place)), text_(text) {}

  // Reads the whole document, an object; visit(key, value) for each field, in order.
  template <typename Visit>
  Result<> read(Visit visit);

  // visit(key, value) for each field; a key that comes twice is refused. Keys live as long as this.
  template <typename Visit>
  Result<> fields(ondemand::value value, const Subject& of, Visit visit);

  // `of` says in messages what the value is.
  Result<std::string> string(ondemand::value value, const Subject& of);
  Result<std::uint64_t> whole(ondemand::value value, const Subject& of);
  Result<std::vector<std::uint64_t>> wholes(ondemand::value value, const Subject& of);

  std::uint64_t offset_of(ondemand::value value) const;  // in the file
  // file:offset of the value and the message.
  Error at(ondemand::value value, std::string message) const;

 private:
  template <typename Visit>
  Result<> each(ondemand::object object, const Subject& of, Visit visit);
  Result<> begin();
  Result<> end();
  Error at(const char* where, std::string message) const;
  Error invalid();  // at the parser's place
  Error invalid(const char* where) const;
  Error unexpected(ondemand::value value, const Subject& of, std::string_view due) const;
  std::string_view token_at(const char* where) const;
  bool begins_with(ondemand::value value, char c) const;

  Place place_;
  simdjson::padded_string text_;
  ondemand::parser parser_;
  ondemand::document document_;
};

template <typename Visit>
Result<> JsonReader::each(ondemand::object object, const Subject& of, Visit visit) {
  SeenKeys seen;
  for (auto field : object) {
    std::string_view key;
    ondemand::value value;
    if (field.unescaped_key().get(key) != simdjson::SUCCESS) return invalid();
    if (field.value().get(value) != simdjson::SUCCESS) return invalid();
    if (!seen.insert(key))
      return at(value, "key '" + printable(key) + "' appears twice in " + of.text());
    TRY(visit(key, value));
  }
  return {};
}

template <typename Visit>
Result<> JsonReader::read(Visit visit) {
  TRY(begin());
  ondemand::object object;
  if (document_.get_object().get(object) != simdjson::SUCCESS) return invalid();
  TRY(each(object, place_.what, visit));
  return end();
}

template <typename Visit>
Result<> JsonReader::fields(ondemand::value value, const Subject& of, Visit visit) {
  if (!begins_with(value, '{')) return unexpected(value, of, "an object");
  ondemand::object object;
  if (value.get_object().get(object) != simdjson::SUCCESS) return invalid();
  return each(object, of, visit);
}

}  // namespace formats::safetensors
