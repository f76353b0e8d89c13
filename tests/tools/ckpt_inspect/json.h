// Documents that the tools print.
#pragma once

#include <gtest/gtest.h>
#include <simdjson.h>

#include <string>

namespace ebb::inspect_test {

// Both by value: what simdjson answers is gone at the end of the line.
inline simdjson::dom::element parsed(simdjson::dom::parser& parser, const std::string& text) {
  simdjson::dom::element document;
  EXPECT_EQ(parser.parse(text).get(document), simdjson::SUCCESS) << text;
  return document;
}

inline simdjson::dom::array list_in(simdjson::dom::element what, const char* key) {
  simdjson::dom::array list;
  EXPECT_EQ(what[key].get(list), simdjson::SUCCESS) << key;
  return list;
}

}  // namespace ebb::inspect_test
