// Strict reading of the small JSON documents of this format over simdjson's on-demand parser:
// duplicate keys refused, numbers whole and not negative, every error with file:offset and the text
// that was found. Nothing recurses, so nesting depth costs nothing.
#pragma once

#define SIMDJSON_EXCEPTIONS 0
#include <simdjson.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "formats/core/json_text.h"
#include "formats/core/result.h"

namespace formats::safetensors {

namespace ondemand = simdjson::ondemand;

// Keys of one object. Most objects have three or four: those are not worth a hash table.
class SeenKeys {
 public:
  bool insert(const std::string& key) {  // false: it was there
    if (!many_.empty()) return many_.insert(key).second;
    if (std::find(few_.begin(), few_.end(), key) != few_.end()) return false;
    few_.push_back(key);
    if (few_.size() > 16) many_.insert(few_.begin(), few_.end());
    return true;
  }

 private:
  std::vector<std::string> few_;
  std::unordered_set<std::string> many_;
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

  // visit(key, value) for each field; a key that comes twice is refused.
  template <typename Visit>
  Result<> fields(ondemand::value value, std::string_view of, Visit visit);

  // `of` says in messages what the value is.
  Result<std::string> string(ondemand::value value, std::string_view of);
  Result<std::uint64_t> whole(ondemand::value value, std::string_view of);
  Result<std::vector<std::uint64_t>> wholes(ondemand::value value, std::string_view of);

  // file:offset of the value and the message.
  Error at(ondemand::value value, std::string message) const;

 private:
  template <typename Visit>
  Result<> each(ondemand::object object, std::string_view of, Visit visit);
  Result<> begin();
  Result<> end();
  Error at(const char* where, std::string message) const;
  Error invalid();  // at the parser's place
  Error invalid(const char* where) const;
  Error unexpected(ondemand::value value, std::string_view of, std::string_view due) const;
  std::string_view token_at(const char* where) const;

  Place place_;
  simdjson::padded_string text_;
  ondemand::parser parser_;
  ondemand::document document_;
};

template <typename Visit>
Result<> JsonReader::each(ondemand::object object, std::string_view of, Visit visit) {
  SeenKeys seen;
  for (auto field : object) {
    std::string_view raw;
    ondemand::value value;
    if (field.unescaped_key().get(raw) != simdjson::SUCCESS) return invalid();
    if (field.value().get(value) != simdjson::SUCCESS) return invalid();
    const std::string key(raw);
    if (!seen.insert(key))
      return at(value, "key '" + printable(key) + "' appears twice in " + std::string(of));
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
Result<> JsonReader::fields(ondemand::value value, std::string_view of, Visit visit) {
  if (token_at(value.raw_json_token().data()).substr(0, 1) != "{")
    return unexpected(value, of, "an object");
  ondemand::object object;
  if (value.get_object().get(object) != simdjson::SUCCESS) return invalid();
  return each(object, of, visit);
}

}  // namespace formats::safetensors
