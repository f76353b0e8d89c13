// JSON output, compact, in the order it is written.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "ebb/formats/core/error.h"

namespace ebb::tools {

// {"a": 1, "b": [..]}: key() before each value inside an object; commas are put where they belong.
class JsonWriter {
 public:
  JsonWriter& open_object();
  JsonWriter& close_object();
  JsonWriter& open_list();
  JsonWriter& close_list();
  JsonWriter& key(std::string_view name);
  JsonWriter& text(std::string_view value);
  JsonWriter& number(std::uint64_t value);
  JsonWriter& raw(std::string_view json);  // a value that is JSON already
  JsonWriter& null() { return raw("null"); }

  // With a newline at the end. REQUIRES: everything opened is closed.
  std::string take();

 private:
  void begin_value();
  std::string out_;
  bool comma_ = false;
  int depth_ = 0;
};

// The fields of an error, inside an object: code, message, hint, and file, offset, rank, tensor and
// step: null where they are not known.
void write_error(JsonWriter& json, const Error& error);

}  // namespace ebb::tools
