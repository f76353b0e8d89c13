#include "tools/cli/text.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "ebb/formats/core/check.h"
#include "ebb/formats/core/compose.h"
#include "ebb/formats/core/json_text.h"

namespace ebb::tools {
namespace {

constexpr std::size_t kWidestCell = 72;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Code points, which is columns for the scripts that names of tensors use.
std::size_t columns_of(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

std::string_view take_digits(std::string_view& text) {
  const auto end = std::find_if_not(text.begin(), text.end(), is_digit);
  const auto length = static_cast<std::size_t>(end - text.begin());
  std::string_view digits = text.substr(0, length);
  text.remove_prefix(length);
  while (digits.size() > 1 && digits.front() == '0') digits.remove_prefix(1);
  return digits;
}

template <typename... Form>
std::string number_text(double value, Form... form) {
  std::array<char, 400> out;  // of the largest double all digits, and some behind the point
  const auto end = std::to_chars(out.data(), out.data() + out.size(), value, form...).ptr;
  return {out.data(), end};
}

}  // namespace

std::string bytes_text(std::uint64_t bytes) {
  if (bytes < 1024) return compose("{} B", bytes);
  constexpr std::array kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  while (value >= 1023.95 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return compose("{} {}", decimal(value, 1), kUnits[unit]);
}

std::string count_text(std::uint64_t count) {
  std::string digits = std::to_string(count);
  for (std::size_t at = digits.size(); at > 3;) {
    at -= 3;
    digits.insert(at, ",");
  }
  return digits;
}

std::string plural(std::uint64_t count, std::string_view one) {
  return compose("{} {}{}", count_text(count), one, count == 1 ? "" : "s");
}

std::string decimal(double value, int digits) {
  return number_text(value, std::chars_format::fixed, digits);
}

std::string significant(double value, int digits) {
  return number_text(value, std::chars_format::general, digits);
}

std::string shortest(double value) { return number_text(value); }

// A run of digits is written as its length, then itself; both stay in the range of digits, so that
// runs keep their place among other characters.
void append_natural_key(std::string& key, std::string_view text) {
  const std::size_t before = key.size();
  key.resize(before + 2 * text.size());  // a run of digits becomes twice as long at most
  char* to = key.data() + before;
  while (!text.empty()) {
    if (!is_digit(text.front())) {
      *to++ = text.front();
      text.remove_prefix(1);
      continue;
    }
    const std::string_view digits = take_digits(text);
    std::size_t length = digits.size();
    for (; length >= 9; length -= 9) *to++ = '9';
    *to++ = static_cast<char>('0' + length);
    to = std::copy(digits.begin(), digits.end(), to);
  }
  key.resize(static_cast<std::size_t>(to - key.data()));
}

bool natural_less(std::string_view a, std::string_view b) {
  std::string key_a, key_b;
  append_natural_key(key_a, a);
  append_natural_key(key_b, b);
  return key_a != key_b ? key_a < key_b : a < b;
}

void Table::add(std::vector<std::string> cells) {
  EBB_CHECK(cells.size() == columns_.size());
  for (std::string& cell : cells) cell = printable(cell, kWidestCell);
  rows_.push_back(std::move(cells));
}

std::string Table::text() const {
  std::vector<std::size_t> widths;
  for (const Column& column : columns_) widths.push_back(columns_of(column.heading));
  for (const auto& row : rows_)
    for (std::size_t c = 0; c < row.size(); ++c)
      widths[c] = std::max(widths[c], columns_of(row[c]));
  std::string out;
  const auto append = [&](const auto& cell_of) {
    std::string line = " ";
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      const std::string& cell = cell_of(c);
      const std::string fill(widths[c] - columns_of(cell), ' ');
      line += columns_[c].align == Align::right ? " " + fill + cell : " " + cell + fill;
      if (c + 1 < columns_.size()) line += " ";
    }
    line.resize(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  };
  append([&](std::size_t c) -> const std::string& { return columns_[c].heading; });
  for (const auto& row : rows_) append([&](std::size_t c) -> const std::string& { return row[c]; });
  return out;
}

std::string shell_quoted(const std::string& word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./,:@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string out = "'";
  for (const char& c : word) out += c == '\'' ? std::string_view("'\\''") : std::string_view(&c, 1);
  return out + "'";
}

}  // namespace ebb::tools
