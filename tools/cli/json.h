// JSON output, compact, in the order it is written.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

#include "ebb/formats/core/error.h"
#include "ebb/formats/core/units.h"

namespace ebb::tools {

// {"a": 1, "b": [..]}: key() before each value inside an object; commas are put where they belong.
class JsonWriter {
 public:
  JsonWriter& open_object() { return open('{'); }
  JsonWriter& close_object() { return close('}'); }
  JsonWriter& open_list() { return open('['); }
  JsonWriter& close_list() { return close(']'); }
  JsonWriter& key(std::string_view name);
  JsonWriter& text(std::string_view value);
  JsonWriter& number(std::uint64_t value);
  JsonWriter& raw(std::string_view json);  // a value that is JSON already
  JsonWriter& null() { return raw("null"); }

  // What the type says: text, a number, a rank, true or false, a list of such; null for an empty
  // optional.
  template <typename T>
  JsonWriter& value(const T& what) {
    if constexpr (std::convertible_to<const T&, std::string_view>) {
      return text(what);
    } else if constexpr (std::same_as<T, bool>) {
      return raw(what ? "true" : "false");
    } else if constexpr (std::integral<T>) {
      return raw(std::to_string(what));
    } else if constexpr (std::same_as<T, Rank>) {
      return raw(std::to_string(index_of(what)));
    } else if constexpr (requires { what.has_value(); }) {
      return what ? value(*what) : null();
    } else {
      open_list();
      for (const auto& item : what) value(item);
      return close_list();
    }
  }
  template <typename T>
  JsonWriter& put(std::string_view name, const T& what) {
    return key(name).value(what);
  }

  // With a newline at the end. REQUIRES: everything opened is closed.
  std::string take();

 private:
  void begin_value();
  JsonWriter& open(char bracket);
  JsonWriter& close(char bracket);
  std::string out_;
  bool comma_ = false;
  int depth_ = 0;
};

// The fields of an error, inside an object: code, message, hint, and file, offset, rank, tensor and
// step: null where they are not known.
void write_error(JsonWriter& json, const Error& error);

}  // namespace ebb::tools
