// Text for people: sizes, counts, natural order, globs and tables.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ebb::tools {

std::string bytes_text(std::uint64_t bytes);  // "55.4 MiB", IEC units, one decimal
std::string count_text(std::uint64_t count);  // "14,520,320"
std::string plural(std::uint64_t count, std::string_view one);  // "1 file", "3 files"

// "layers.2" before "layers.10".
bool natural_less(std::string_view a, std::string_view b);
// Appends what natural_less compares, byte by byte; for sorting many. Leading zeros make no
// difference.
void append_natural_key(std::string& key, std::string_view text);

// '*' any run of characters, '?' one; the whole text must match.
bool glob_match(std::string_view pattern, std::string_view text);

enum class Align : std::uint8_t { left, right };
struct Column {
  std::string heading;
  Align align = Align::left;
};

// Columns as wide as their longest cell (cells that are too long end in "..."), two spaces between
// them, indented by two. Cells are made safe to print.
class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  void add(std::vector<std::string> cells);  // REQUIRES: as many as there are columns
  std::size_t rows() const { return rows_.size(); }
  std::string text() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace ebb::tools
