// Json: an object that a function of ebb.h answers, as text.
#pragma once

#include <cmath>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "ebb/formats/core/json_text.h"
#include "ebb/libswap/stats.h"

namespace ebb::c {

class Json {
 public:
  void text(std::string_view key, std::string_view value) {
    begin(key);
    formats::append_json_string(out_, value);
  }
  void item(std::string_view value) {
    separate();
    formats::append_json_string(out_, value);
  }
  void number(std::string_view key, std::uint64_t value) {
    begin(key);
    out_ += std::to_string(value);
  }
  void number(std::string_view key, double value) {
    char digits[32] = "null";  // JSON has no other numbers
    if (std::isfinite(value)) std::snprintf(digits, sizeof(digits), "%.17g", value);
    begin(key);
    out_ += digits;
  }
  // A value that is JSON already; of a list.
  void json(std::string_view key, std::string_view value) {
    begin(key);
    out_ += value;
  }
  void json_item(std::string_view value) {
    separate();
    out_ += value;
  }
  void number_item(std::uint64_t value) { json_item(std::to_string(value)); }
  void numbers_item(std::span<const std::uint64_t> values) {
    open_list();
    for (const std::uint64_t value : values) number_item(value);
    close_list();
  }
  void counters(std::span<const libswap::Stat> stats) {
    for (const libswap::Stat& stat : stats)
      std::visit([&](auto value) { number(stat.name, value); }, stat.value);
  }
  void texts(std::string_view key, const auto& named) {
    open_object(key);
    for (const auto& [name, value] : named) text(name, value);
    close_object();
  }
  void open_object() { separate(), out_ += '{'; }
  void open_object(std::string_view key) { begin(key), out_ += '{'; }
  void close_object() { out_ += '}'; }
  void open_list() { separate(), out_ += '['; }
  void open_list(std::string_view key) { begin(key), out_ += '['; }
  void close_list() { out_ += ']'; }
  std::string whole() const { return out_ + "}"; }

 private:
  void separate() {
    if (out_.back() != '{' && out_.back() != '[') out_ += ',';
  }
  void begin(std::string_view key) {
    separate();
    formats::append_json_string(out_, key);
    out_ += ':';
  }

  std::string out_ = "{";
};

}  // namespace ebb::c
