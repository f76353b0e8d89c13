// Text for people: sizes, counts, numbers, natural order and tables.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ebb::tools {

std::string bytes_text(std::uint64_t bytes);  // "55.4 MiB", IEC units, one decimal
std::string count_text(std::uint64_t count);  // "14,520,320"
std::string plural(std::uint64_t count, std::string_view one);  // "1 file", "3 files"
std::string decimal(double value, int digits);                  // behind the point: printf's %.*f
std::string significant(double value, int digits);              // printf's %.*g
std::string shortest(double value);  // that reads back as the same double

// "a, b, c"
template <typename Words>
std::string joined(const Words& words, std::string_view between = ", ") {
  std::string out;
  for (const std::string_view word : words) out.append(out.empty() ? "" : between).append(word);
  return out;
}

// "layers.2" before "layers.10".
bool natural_less(std::string_view a, std::string_view b);
// Appends what natural_less compares, byte by byte; for sorting many. Leading zeros make no
// difference.
void append_natural_key(std::string& key, std::string_view text);

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

// A word of a command, for people to type into a shell.
std::string shell_quoted(const std::string& word);

}  // namespace ebb::tools
