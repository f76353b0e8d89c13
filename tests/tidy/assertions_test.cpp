// Which line of which test shows an acceptance row: tests/assertions.txt, held to the page and to
// the sources. Prints the table of rows and lines.
#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <optional>
#include <regex>
#include <set>

#include "tests/tidy/source_tree.h"

namespace ebb::tidy {
namespace {

struct Assertion {
  std::string row, suite, test, text;
};

struct Place {
  const SourceFile* file = nullptr;
  std::size_t line = 0;  // from 1
};

std::vector<Assertion> assertions(const SourceFile& list, Offenders& offenders) {
  const std::regex form("([ABC]\\d+) (\\w+)\\.(\\w+): (.+)");
  std::vector<Assertion> all;
  for (std::size_t i = 0; i < list.lines.size(); ++i) {
    const std::string& line = list.lines[i];
    std::smatch match;
    if (line.empty() || line.starts_with("#")) continue;
    if (std::regex_match(line, match, form))
      all.push_back({match[1], match[2], match[3], match[4]});
    else
      offenders.add(list, i + 1, "wanted ROW Suite.Test: TEXT");
  }
  return all;
}

// Where the test begins.
std::optional<Place> place_of(const Assertion& wanted) {
  const std::regex head("^TEST(_F|_P)?\\(" + wanted.suite + ", *" + wanted.test + "\\)");
  for (const SourceFile& file : source_files()) {
    if (file.top() != "tests" || file.extension() != ".cpp" ||
        file.text.find(wanted.test) == std::string::npos)
      continue;
    for (std::size_t i = 0; i < file.lines.size(); ++i)
      if (std::regex_search(file.lines[i], head)) return Place{&file, i + 1};
  }
  return std::nullopt;
}

// In the test, else anywhere in its file: in what it calls.
std::optional<std::size_t> line_of(const Assertion& wanted, const Place& test) {
  const auto& lines = test.file->lines;
  const auto find = [&](std::size_t first, bool in_test) -> std::optional<std::size_t> {
    for (std::size_t i = first; i < lines.size() && !(in_test && lines[i] == "}"); ++i)
      if (lines[i].find(wanted.text) != std::string::npos) return i + 1;
    return std::nullopt;
  };
  const auto inside = find(test.line - 1, true);
  return inside ? inside : find(0, false);
}

bool asserts(const std::string& text) {
  return text.find("EXPECT_") != std::string::npos || text.find("ASSERT_") != std::string::npos ||
         text.find("expect_") != std::string::npos;
}

// Row -> the tests that the page names for it.
std::map<std::string, std::set<std::string>> rows_of(const SourceFile& page) {
  const std::regex row("^\\| ([ABC]\\d+) \\|.*\\| ([^|]+) \\|$"), name("`(?:\\w+/)?(\\w+\\.\\w+)`");
  std::map<std::string, std::set<std::string>> rows;
  for (const std::string& line : page.lines) {
    std::smatch match;
    if (!std::regex_match(line, match, row)) continue;
    const std::string proof = match[2];
    auto& named = rows[match[1]];
    for (std::sregex_iterator it(proof.begin(), proof.end(), name), end; it != end; ++it)
      named.insert(it->str(1));
  }
  return rows;
}

TEST(Tidy, EveryAcceptanceRowHasItsAssertion) {
  const SourceFile* const page = find_file("tests/acceptance.md");
  const SourceFile* const list = find_file("tests/assertions.txt");
  ASSERT_TRUE(page != nullptr && list != nullptr);
  Offenders offenders;
  const auto rows = rows_of(*page);
  std::set<std::string> shown;
  for (const Assertion& one : assertions(*list, offenders)) {
    const std::string name = one.suite + "." + one.test;
    const auto row = rows.find(one.row);
    const auto test = place_of(one);
    if (row == rows.end() || !row->second.contains(name))
      offenders.add(one.row + ": the page does not name " + name);
    else if (!asserts(one.text))
      offenders.add(one.row + ": is no assertion: " + one.text);
    else if (const auto line = test ? line_of(one, *test) : std::nullopt)
      std::printf("%-4s %s:%zu\n", one.row.c_str(), test->file->path.c_str(), *line);
    else
      offenders.add(one.row + ": not in the file of " + name + ": " + one.text);
    shown.insert(one.row);
  }
  for (const auto& [row, tests] : rows)
    if (!tests.empty() && !shown.contains(row))
      offenders.add(row + ": tests/assertions.txt does not say which line of its test shows it");
  EXPECT_TRUE(offenders.none());
}

}  // namespace
}  // namespace ebb::tidy
